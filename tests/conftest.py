"""What holds for the whole suite: the devices, enforced array shapes, the data folder."""

import gc
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import numpy as np
import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# Far enough below the kernel's 65,530 for the programs of the longest file.
_MOST_MAPPINGS = 25_000

# Tracing makes millions of objects that stay, among which Python looks for garbage in vain, after
# each 700 of them by default: a twentieth of the suite's time.
gc.set_threshold(200_000, 20, 100)

# JAX and Matplotlib read these once, when they are imported.
assert "jax" not in sys.modules, "JAX was imported before tests/conftest.py could set it up"
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "2",
    # Programs are rebuilt in every test: with a cache on disk, the same ones compile once.
    "JAX_COMPILATION_CACHE_DIR": str(REPOSITORY / ".jax_cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "MPLBACKEND": "agg",
    # PyTensor's interpreter runs the few programs; C for it takes half a minute to compile.
    "PYTENSOR_FLAGS": "cxx=",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# Array shapes in annotations are enforced from here on, hence before milzoo is imported. An int
# is a float, as type checkers see it; Self is beyond a checker that sees one method at a time.
jaxtyping.install_import_hook(
    "milzoo",
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True, "
    "hint_overrides=beartype.FrozenDict({beartype.typing.Self: object})))",
)

settings.register_profile("milzoo", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("milzoo")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as slow what stands in tests/slow, and all cases but one where the mark says so."""
    begun = set()
    for item in items:
        function = item.nodeid.split("[")[0]
        is_another = function in begun and item.get_closest_marker("slow_but_first")
        if is_another or "slow" in item.path.relative_to(REPOSITORY).parts:
            item.add_marker("slow")
        begun.add(function)


def _data_folder() -> Path:
    beside = REPOSITORY.parent / "shared" / "data"
    return Path(os.environ.get("MILZOO_DATA", beside)).resolve()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of published data sets; a test that asks for it is skipped where it is not."""
    folder = _data_folder()
    if not folder.is_dir():
        pytest.skip(f"no data folder at {folder}: set MILZOO_DATA to the folder that has musk1")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _data_in_the_environment():
    """Let ``load`` find the folder beside the repository, as a user's MILZOO_DATA would."""
    with pytest.MonkeyPatch.context() as patch:
        if _data_folder().is_dir():
            patch.setenv("MILZOO_DATA", str(_data_folder()))
        yield


class Compilations:
    """How many programs XLA compiled since it was made; not all versions of JAX can unregister."""

    def __init__(self) -> None:
        import jax

        self.number = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, duration_secs: float, **_: object) -> None:
        self.number += "backend_compile" in event


@pytest.fixture(scope="session")
def compilations() -> Compilations:
    """A counter of compiled programs."""
    return Compilations()


@pytest.fixture(scope="module", autouse=True)
def _memory_mappings_of_compiled_programs():
    """Forget programs between files before the kernel has no more mappings for a process.

    JAX keeps every program that was compiled, each in some dozens of mappings. Linux grants a
    process 65,530 of them, and XLA dies without a word where there are none left.
    """
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and len(mappings.read_bytes().splitlines()) > _MOST_MAPPINGS:
        sys.modules["jax"].clear_caches()


class WhenAskedFor(dict):
    """Values by name, each made by a function when a test first asks for it."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, name: str) -> Any:
        value = self[name] = self.make(name)
        return value


@pytest.fixture(scope="session")
def when_asked_for() -> type[WhenAskedFor]:
    """`WhenAskedFor`, for fits of which a suite that is run in part needs a few."""
    return WhenAskedFor


@pytest.fixture
def without_type_checks():
    """Run as users do, who have no type checker: what the package itself says of bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# ------------------------------------------------------------------ Monte Carlo


class Moments(NamedTuple):
    """Mean and sd of every quantity, (2, K), with their Monte-Carlo standard errors."""

    values: np.ndarray
    errors: np.ndarray

    def largest_z(self, other: "Moments | np.ndarray") -> float:
        """Largest difference in standard errors, from another chain's or from exact moments."""
        values, errors = other if isinstance(other, Moments) else (other, 0.0)
        return float(np.abs((self.values - values) / np.hypot(self.errors, errors)).max())


@pytest.fixture(scope="session")
def moments():
    """Function of draws (chain, draw, …) that gives their `Moments`."""
    from arviz_stats.base import array_stats  # it imports JAX

    def of(draws) -> Moments:
        draws = np.asarray(draws, float)
        draws = draws.reshape(*draws.shape[:2], -1)
        errors = [
            array_stats.mcse(draws, chain_axis=0, draw_axis=1, method=name)
            for name in ("mean", "sd")
        ]
        values = [draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))]
        return Moments(np.stack(values), np.stack(errors))

    return of


@pytest.fixture(scope="session")
def scene_of_clusters():
    """Function of a number of bags, their sizes and a seed: `DPMIL`, D = 2, K = 4, and its bags."""
    from milzoo.datasets import simulate, simulate_instances
    from milzoo.models import DPMIL

    def of(num_bags, sizes, seed):
        design = simulate_instances(num_bags, sizes, num_features=2, seed=seed)
        fields = {"degrees_of_freedom": 6.0, "mean_strength": 0.2, "max_components": 4}
        model = DPMIL(np.zeros(2), np.eye(2), **fields)
        return model, simulate(model, design, seed=seed + 1)[0]

    return of


@pytest.fixture(scope="session")
def estimand_draws():
    """Function of a posterior that gives the draws (chain, draw, …) of its estimands."""

    def of(posterior) -> np.ndarray:
        draws = posterior.draws_with_estimands
        estimands = [draws[site].to_numpy().astype(float) for site in posterior.model.estimands]
        return np.concatenate([site.reshape(*site.shape[:2], -1) for site in estimands], axis=2)

    return of


@pytest.fixture(scope="session")
def simulation_based_calibration():
    """The code that the quick and the slow calibration share."""
    return _beside_the_tests("simulation_based_calibration")


@pytest.fixture(scope="session")
def fit_in_a_process():
    """The program that tests of several devices and processes start, as a module."""
    return _beside_the_tests("runtime/fit_in_a_process")


def _beside_the_tests(name: str):
    """A module of the tests: pytest imports none from another."""
    path = REPOSITORY / "tests" / "inference" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
