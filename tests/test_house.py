"""The house rules: who may import whom, what a module may not do, and that the wheel works."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parent.parent
# Each wing may import itself and those before it.
WINGS = (
    "datasets",
    "models",
    "inference",
    "estimators",
    "diagnostics",
    "references",
    "papers",
    "cli",
)
PLOTTING = ("matplotlib", "arviz_plots", "arviz", "altair")
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "misc", "common", "base"}

SOURCES = sorted(
    path.relative_to(REPOSITORY) for wing in WINGS for path in (REPOSITORY / wing).rglob("*.py")
)
MODULES = sorted(
    ".".join(("milzoo", *path.with_suffix("").parts)).removesuffix(".__init__") for path in SOURCES
)


def run_python(program: str, **environment: str) -> str:
    """Run a program in a fresh interpreter, with the JAX settings of a user: none."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    outcome = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=kept | environment,
        cwd=Path(__file__).parent,  # the wings do not stand here
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


# ---------------------------------------------------------------- who may import whom


def imported_names(source: str) -> Iterator[tuple[int, str]]:
    """Every import of a source as (level, dotted name), level 0 for absolute ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.level, ".".join(filter(None, (node.module, alias.name)))


def import_violations(path: Path, source: str) -> list[str]:
    """What the imports of the module at ``path`` (relative to the repository) do wrong."""
    wing, folder = path.parts[0], path.parent.parts
    allowed = WINGS[: WINGS.index(wing) + 1]
    violations = []
    for level, name in imported_names(source):
        first = name.split(".")[0]
        if level == 0:
            if first in ("milzoo", *WINGS):
                violations.append(f"{path}: import {name} relatively, not by an absolute name")
            if first in PLOTTING and wing in ("datasets", "models", "inference", "estimators"):
                violations.append(f"{path}: {wing} must not plot, and {name} does")
        elif level > len(folder) + 1:
            violations.append(f"{path}: {'.' * level}{name} leaves the package")
        else:
            target = (*folder[: len(folder) - level + 1], *name.split("."))[0]
            if target not in allowed:
                violations.append(f"{path}: {wing} must not know {target} ({name})")
    return violations


def test_every_import_points_to_an_earlier_wing():
    assert SOURCES
    violations = [
        violation
        for path in SOURCES
        for violation in import_violations(path, (REPOSITORY / path).read_text("utf-8"))
    ]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("datasets/bags.py", "from ..models.vgpmil import VGPMIL", "must not know models"),
        ("models/vgpmil.py", "from .. import inference", "must not know inference"),
        ("models/pymc/vgpmil.py", "from ...inference import nuts", "must not know inference"),
        ("inference/__init__.py", "from ..diagnostics import compare", "must not know diagnostics"),
        ("inference/svi.py", "def f():\n    from ..cli import main", "must not know cli"),
        ("inference/svi.py", "from ..estimators import EMDD", "must not know estimators"),
        ("inference/svi.py", "import milzoo.datasets", "relatively"),
        ("inference/svi.py", "from models.kernels import RBF", "relatively"),
        ("models/vgpmil.py", "from ...datasets import Bags", "leaves the package"),
        ("models/vgpmil.py", "import matplotlib.pyplot as plt", "must not plot"),
        ("inference/posterior.py", "from arviz import plot_trace", "must not plot"),
    ],
)
def test_a_forbidden_import_is_seen(path, source, message):
    (violation,) = import_violations(Path(path), source)
    assert message in violation


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("models/vgpmil.py", "from ..datasets.bags import Bags"),
        ("models/pymc/vgpmil.py", "from ..parts.kernels import RBF"),
        ("models/pymc/vgpmil.py", "from . import vgpmil"),
        ("inference/gibbs/__init__.py", "from ...models import VGPMIL"),
        ("diagnostics/report.py", "import matplotlib, arviz\nfrom .. import datasets, inference"),
        ("inference/posterior.py", "import arviz_base, arviz_stats"),
    ],
)
def test_an_allowed_import_is_left_alone(path, source):
    assert import_violations(Path(path), source) == []


# ---------------------------------------------------------------- no circle of imports


def imports_of(path: Path, source: str, modules: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Modules that a source imports, wherever the import stands in it."""
    found = set()
    for level, name in imported_names(source):
        parts = name.split(".")
        if level:
            folder = path.parent.parts
            parts = [*folder[: len(folder) - level + 1], *parts]
        # `from .a import b`: b is a module, or a name in the module a.
        whole, owner = tuple(parts), tuple(parts[:-1])
        found |= {whole} if whole in modules else {owner} & modules
    return found


def circle(graph: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[str]:
    """Modules that import each other in a circle, by name; empty if none do."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return [".".join(module) for module in error.args[1]]
    return []


def import_graph(sources: dict[Path, str]) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """What each module imports, by the parts of its name."""
    names = {path: path.with_suffix("").parts for path in sources}
    names = {p: parts[:-1] if parts[-1] == "__init__" else parts for p, parts in names.items()}
    modules = set(names.values())
    return {names[path]: imports_of(path, source, modules) for path, source in sources.items()}


@pytest.mark.parametrize("wing", WINGS)
def test_modules_of_a_wing_import_in_no_circle(wing):
    """Imports for type checking and inside functions count."""
    sources = {path: (REPOSITORY / path).read_text("utf-8") for path in SOURCES}
    of_wing = {path: source for path, source in sources.items() if path.parts[0] == wing}
    assert of_wing
    assert not circle(import_graph(of_wing))


@pytest.mark.parametrize(
    "back",
    [
        "from .. import one",
        "from ..one import f",
        "if TYPE_CHECKING:\n    from ..one import F",
        "def f():\n    from ...models.one import f",
    ],
)
def test_a_circle_of_imports_is_seen(back):
    sources = {
        Path("models/__init__.py"): "from .one import f",
        Path("models/one.py"): "from .parts import two",
        Path("models/parts/__init__.py"): "",
        Path("models/parts/two.py"): back,
    }
    assert set(circle(import_graph(sources))) == {"models.one", "models.parts.two"}


def missing_names(source: str) -> list[str]:
    """What a source imports from ``milzoo`` and is not there."""
    imported = [name for _, name in imported_names(source) if name.startswith("milzoo.")]
    return [name for name in imported if not _stands(*name.rpartition(".")[::2])]


def _stands(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    return f"{module}.{name}" in MODULES


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_every_name_that_a_script_imports_is_there(folder):
    """Scripts are run by other commands than the tests, and late."""
    sources = {path: path.read_text("utf-8") for path in (REPOSITORY / folder).glob("*.py")}
    assert any("milzoo" in source for source in sources.values())
    missing = {path.name: missing_names(source) for path, source in sources.items()}
    assert not {name: names for name, names in missing.items() if names}


def test_a_missing_name_of_a_script_is_seen():
    source = "def f():\n    from milzoo.inference import nuts, nutz\nimport milzoo.models.vwsgp"
    assert missing_names(source) == ["milzoo.inference.nutz"]


# ---------------------------------------------------------------- what a module may not do


def dotted_name(node: ast.expr, aliases: dict[str, str]) -> str:
    """``jnp.linalg.inv`` as ``jax.numpy.linalg.inv``; empty if it is not a plain name."""
    match node:
        case ast.Name(id=name):
            return aliases.get(name, name)
        case ast.Attribute(value=value, attr=attribute):
            owner = dotted_name(value, aliases)
            return f"{owner}.{attribute}" if owner else ""
        case _:
            return ""


def forbidden_names(source: str) -> list[str]:
    """Global JAX flags and matrix inverses that a source uses, by full name."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    names = {
        dotted_name(node, aliases)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    forbidden = re.compile(r"(jax\.config\.|.*\blinalg\.p?inv$)|numpyro\.(enable_x64|set_\w+)$")
    return sorted(name for name in names if forbidden.match(name))


def test_no_wing_changes_global_flags_or_inverts_a_matrix():
    found = {
        str(path): names
        for path in SOURCES
        if (names := forbidden_names((REPOSITORY / path).read_text("utf-8")))
    }
    # `keep_programs` is called to set flags: by the command line and the notebooks, which are ours.
    assert set(found) <= {"inference/runtime/compilation_cache.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import jax\njax.config.update('jax_enable_x64', True)",
        "from jax import config\nconfig.update('jax_enable_x64', True)",
        "import jax\njax.config.jax_enable_x64 = True",
        "import numpyro\nnumpyro.enable_x64()",
        "import numpyro\nnumpyro.set_host_device_count(2)",
        "import jax.numpy as jnp\njnp.linalg.inv(K)",
        "from jax.scipy import linalg as la\nla.inv(K)",
        "from numpy.linalg import pinv as invert\ninvert(K)",
    ],
)
def test_a_forbidden_name_is_seen(source):
    assert len(forbidden_names(source)) == 1


def test_the_inverse_of_a_bijection_is_no_matrix_inverse():
    assert forbidden_names("from numpyro.distributions import biject_to\nbiject_to(c).inv(x)") == []


def test_every_module_name_says_what_it_holds():
    parts = {part for path in SOURCES for part in path.with_suffix("").parts}
    assert not parts & NAMES_THAT_SAY_NOTHING


MOST_WORDS_OF_A_TEST = 9


def long_test_names(source: str) -> list[str]:
    """Names of tests with more words than one claim needs."""
    names = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    words = {name: name.split("_")[1:] for name in names if name.startswith("test_")}
    return [name for name, said in words.items() if len(said) > MOST_WORDS_OF_A_TEST]


def test_the_name_of_every_test_is_short():
    sources = (path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    assert not [name for source in sources for name in long_test_names(source)]


def test_a_long_test_name_is_seen():
    source = "def test_{}(): ...\ndef long_{}(): ..."
    nine, ten = "_".join("abcdefghi"), "_".join("abcdefghij")
    assert long_test_names(source.format(ten, ten)) == [f"test_{ten}"]
    assert long_test_names(source.format(nine, ten)) == []


# ---------------------------------------------------------------- where a model stands

# Beside a model's own files: where each wing lists what it has.
REGISTRIES = {"models/__init__.py", "models/pymc/registry.py", "references/entries.py"}
# Wings that know models by their contract alone. Estimators and papers are made of some of them.
BY_CONTRACT = ("datasets", "models", "inference", "diagnostics", "references", "cli")
# Other files that name a model, each with the reason.
NAMED_IN = {
    "CardinalityModel": {"models/parts/cardinality_kernel.py"},  # the kernel of that model
    "CardinalityGP": {"inference/closed_form/sparse_gp.py"},  # one closed form of three models
    "VGPMIL": {"inference/closed_form/sparse_gp.py", "models/coupled_vgpmil.py"},  # its subclass
    "VWSGP": {"references/stan.py"},  # the one Stan program
}


def models_by_module() -> list[tuple[str, str]]:
    """Each model and the module of its name, which its files in other wings have too."""
    zoo = importlib.import_module("milzoo.models")
    classes = [getattr(zoo, name) for name in zoo.__all__]
    return [
        (one.__name__, one.__module__.rpartition(".")[2])
        for one in classes
        if hasattr(one, "marginal")
    ]


def names_in(source: str) -> set[str]:
    """Names that the code of a module uses or imports; not those in its strings."""
    nodes = list(ast.walk(ast.parse(source)))
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return used | {alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize(("model", "module"), models_by_module())
def test_a_model_stands_in_its_files_and_the_registries(model, module):
    """To add one, in each wing its own file is written and the registry gets a line."""
    found = {
        str(path)
        for path in SOURCES
        if path.parts[0] in BY_CONTRACT and path.stem != module
        if model in names_in((REPOSITORY / path).read_text("utf-8"))
    }
    assert found - REGISTRIES == NAMED_IN.get(model, set())


def test_a_model_is_seen_under_any_name():
    source = "from ..models import BMIL\nkind = VGPMIL\nmodels.VWSGP\n'GPMIL'  # DPMIL"
    assert names_in(source) == {"BMIL", "VGPMIL", "VWSGP", "kind", "models"}


# ---------------------------------------------------------------- what importing does


@pytest.mark.slow
def test_numpyro_is_whole_also_where_arviz_was_imported_first():
    run_python("""
        import arviz
        from milzoo.diagnostics import compare
        import numpyro

        numpyro.distributions.distribution
    """)


def test_help_of_the_command_line_comes_quickly():
    loaded = run_python("""
        import sys
        from milzoo.cli import main

        sys.argv = ["milzoo", "--help"]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        heavy = {"jax", "numpyro", "arviz", "pymc", "sklearn", "matplotlib"}
        print("loaded:", *sorted(heavy & set(sys.modules)))
    """)
    assert "Usage" in loaded
    assert loaded.splitlines()[-1].strip() == "loaded:"


@pytest.mark.in_ci
def test_imports_start_no_backend_and_change_no_flag():
    """`jax.distributed.initialize` is refused once XLA has a backend, which arrays start."""
    run_python(f"""
        import importlib
        import sys
        import jax
        import numpyro
        from jax._src.xla_bridge import backends_are_initialized

        before = dict(jax.config.values)
        assert before["jax_enable_x64"] is False
        for name in {MODULES!r}:
            importlib.import_module(name)
            changed = {{k for k, v in jax.config.values.items() if v != before.get(k, v)}}
            assert not changed, f"importing {{name}} changed {{changed}}"
            assert not backends_are_initialized(), f"importing {{name}} started XLA's backend"
            assert "altair" not in sys.modules, f"importing {{name}} loaded what sliders need"
    """)


# ---------------------------------------------------------------- shapes


def test_array_shapes_in_annotations_are_enforced():
    from milzoo.models import RBF

    with pytest.raises(TypeCheckError, match="right"):
        RBF(variance=1, length_scale=1).covariance(np.zeros((2, 3)), np.zeros((2, 4)))


@pytest.mark.parametrize("name", MODULES)
def test_the_shape_checks_reach_every_module(name):
    module = importlib.import_module(name)
    if type(module.__loader__).__name__ == "_JaxtypingLoader":
        return
    # The hook cannot see the front door of a wing that is installed editable: let it stay empty.
    assert name.count(".") == 1
    assert module.__file__.endswith("__init__.py")
    defined = [
        value.__name__
        for value in vars(module).values()
        if inspect.isfunction(value) and value.__module__ == name
    ]
    assert set(defined) <= {"__getattr__", "__dir__", "main"}


# ---------------------------------------------------------------- what is shipped


def pinned_versions() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    strange = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.]*", line)]
    assert not strange, f"constraints.txt has more than names and versions: {strange}"
    return {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}


def test_every_requirement_is_pinned_to_a_version_it_allows():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    installed = (
        project["dependencies"]
        + extras["pymc"]
        + extras["notebooks"]
        + extras["site"]
        + extras["dev"]
    )
    pinned = pinned_versions()
    for requirement in map(Requirement, installed):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"constraints.txt does not pin {requirement.name}"
        assert version in requirement.specifier, f"{requirement} is pinned to {version}"


def test_nothing_that_is_made_is_tracked():
    """Pages, notebooks and pictures that targets of make write are in .gitignore."""
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_all_files_name_one_version():
    """The changelog by its latest section; `1.0.0rc1` is how wheels write it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    cited = re.findall(r"^version: (.+)$", (REPOSITORY / "CITATION.cff").read_text("utf-8"), re.M)
    told = re.findall(r"^## \[(\d.*?)\]", (REPOSITORY / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert cited == [project["version"]] == told[:1]
    assert str(Version(project["version"])) == project["version"]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_a_page_at_the_top_lead_somewhere(name):
    page = (REPOSITORY / name).read_text("utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page)
    named = re.findall(r"`((?:models|tests|docs)/[\w/]+\.(?:py|md))`", page)
    missing = [path for path in links + named if not (REPOSITORY / path).exists()]
    assert not missing


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel by way of a source distribution, from a copy: building writes into its tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    without_caches = shutil.ignore_patterns("__pycache__")
    for wing in WINGS:
        shutil.copytree(REPOSITORY / wing, tree / wing, ignore=without_caches)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    (built,) = folder.glob("*.whl")
    return built


def install_alone(wheel: Path, folder: Path) -> None:
    """Unpack a wheel; what it depends on is that of this environment."""
    offline = ["--quiet", "--no-index", "--no-deps"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", folder, wheel]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.in_ci
def test_the_wheel_has_every_file_of_the_wings(wheel):
    tree = {
        f"milzoo/{path.relative_to(REPOSITORY).as_posix()}"
        for wing in WINGS
        for path in (REPOSITORY / wing).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert shipped == tree


@pytest.mark.in_ci
def test_the_installed_wheel_works_without_the_repository(wheel, tmp_path):
    install_alone(wheel, tmp_path)
    run_python(
        f"""
        import importlib, pathlib

        for name in {MODULES!r}:
            module = importlib.import_module(name)
            assert pathlib.Path(module.__file__).is_relative_to({str(tmp_path)!r}), module.__file__
        from milzoo.models import RBF

        RBF(variance=1.0, length_scale=1.0)
        """,
        PYTHONPATH=str(tmp_path),
    )


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel(wheel, tmp_path):
    """By the command that it installs; `make test-wheel` does so in an empty environment."""
    installed, report = tmp_path / "installed", tmp_path / "report"
    install_alone(wheel, installed)
    command = [installed / "bin" / "milzoo", "demo", "--out", report]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=environment)
    assert "coordinate_ascent" in (report / "report.html").read_text("utf-8")
