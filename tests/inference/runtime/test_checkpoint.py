"""What long runs write down: draws of chains after a kill are those of an unbroken run.

Real processes are killed in tests/slow/test_killed.py.
"""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import gibbs, nuts
from milzoo.inference.runtime.checkpoint import BlockFolder, Journal, described, identity
from milzoo.models import (
    BMIL,
    GPMIL,
    RBF,
    VGPMIL,
    CardinalityModel,
    DiverseDensity,
    GammaScaleMixture,
    NormalCardinality,
    ScaleMixture,
)

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
MODEL = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)
BAGS, _ = simulate(MODEL, simulate_instances(12, range(1, 5), num_features=2, seed=3), seed=1)
COUNTS = {"num_warmup": 150, "num_samples": 250, "num_chains": 2}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(nuts, id="nuts"),
        pytest.param(partial(nuts, mass_matrix="low_rank"), id="low rank", marks=pytest.mark.slow),
        pytest.param(partial(gibbs, keep="latent"), id="gibbs"),
    ],
)
def engine(request):
    return partial(request.param, MODEL, BAGS, seed=1, **COUNTS)


@pytest.fixture(scope="module")
def unbroken(engine):
    return engine()


def _is_the_same(one, other):
    for group in ("posterior", "sample_stats"):
        if group in one.tree:
            for name, values in one.tree[group].data_vars.items():
                np.testing.assert_array_equal(other.tree[group][name], values)
    return True


@pytest.mark.slow
def test_killed_run_resumes_with_the_same_draws(engine, unbroken, tmp_path):
    folder = tmp_path / "chains"
    assert _is_the_same(unbroken, engine(checkpoint=folder))
    blocks = sorted(folder.glob("block_*.npz"))
    assert len(blocks) == 2 + 3  # of warm-up, and of draws
    # Killed in warm-up: one block is whole, the next was being written.
    first = blocks[0].read_bytes()
    for block in blocks[1:]:
        block.unlink()
    (folder / "block_000001.npz.unfinished").write_bytes(first[:100])
    resumed = engine(checkpoint=folder)
    assert _is_the_same(unbroken, resumed)
    assert blocks[0].read_bytes() == first
    # Killed among the draws.
    blocks[-1].unlink()
    assert _is_the_same(unbroken, engine(checkpoint=folder))


@pytest.mark.in_ci
def test_a_finished_run_is_read_and_not_run(engine, unbroken, tmp_path):
    folder = tmp_path / "chains"
    whole = engine(checkpoint=folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = engine(checkpoint=folder)
    assert _is_the_same(unbroken, again)
    assert again.seconds == whole.seconds
    assert again.sampling_seconds == whole.sampling_seconds
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused(tmp_path):
    folder = tmp_path / "chains"
    run = partial(gibbs, seed=1, checkpoint=folder, **COUNTS)
    run(MODEL, BAGS)
    with pytest.raises(ValueError, match=r"is of another run, in its seed \(seed was uint32"):
        run(MODEL, BAGS, seed=2)
    with pytest.raises(ValueError, match=r"is of another run, in its model"):
        run(replace(MODEL, mean=-0.7), BAGS)
    with pytest.raises(ValueError, match=r"is of another run, in its bags \(bags was 12 bags"):
        run(MODEL, replace(BAGS, labels=1 - BAGS.labels))
    with pytest.raises(ValueError, match=r"in its num_samples \(num_samples was 250, is 300\)"):
        run(MODEL, BAGS, num_samples=300)
    with pytest.raises(ValueError, match=r"in its engine, .* \(engine was 'gibbs', is 'nuts'\)"):
        nuts(MODEL, BAGS, seed=1, checkpoint=folder, **COUNTS)


def test_files_without_a_checkpoint_are_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is there already and holds no run of milzoo"):
        BlockFolder(tmp_path, {"engine": "nuts"})
    with pytest.raises(ValueError, match="is there already and holds no run of milzoo"):
        BlockFolder(tmp_path / "notes.txt", {"engine": "nuts"})
    with pytest.raises(ValueError, match="holds no run of milzoo; give a new path"):
        Journal(tmp_path / "notes.txt", {"engine": "nuts"})
    (tmp_path / "lines.txt").write_text("mine\nand mine")
    with pytest.raises(ValueError, match="holds no run of milzoo; give a new path"):
        Journal(tmp_path / "lines.txt", {"engine": "nuts"})
    assert (tmp_path / "lines.txt").read_text() == "mine\nand mine"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_journal_with_an_unfinished_header_begins_anew(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path, {"engine": "nuts"}).append({"n": 1})
    header = path.read_bytes().splitlines(keepends=True)[0]
    for length in (0, 3, len(header) - 1):
        path.write_bytes(header[:length])
        journal = Journal(path, {"engine": "nuts"})
        assert journal.entries == []
        journal.append({"n": 1})
        assert path.read_bytes().startswith(header)
        assert Journal(path, {"engine": "nuts"}).entries == [{"n": 1}]


def test_keys_and_numbers_come_back_as_they_were(tmp_path):
    folder = BlockFolder(tmp_path / "run", {})
    with jax.enable_x64(True):
        state = {"key": jax.random.key(3), "step": jax.numpy.asarray(0.1), "count": (7,)}
        state = jax.tree.map(jax.numpy.asarray, state)
        folder.write(0, state, np.arange(3.0), 0.5)
        back = folder.state(like=state)
    assert jax.random.key_data(back["key"]).tolist() == jax.random.key_data(state["key"]).tolist()
    assert back["key"].dtype == state["key"].dtype
    assert float(back["step"]) == 0.1
    assert back["count"][0].dtype == state["count"][0].dtype
    assert folder.blocks(like=np.zeros(3))[0][0].tolist() == [0.0, 1.0, 2.0]


def _times(factor):
    return lambda bags, sites: {"x": factor * sites["x"]}


class Held:
    """A method that depends on what it belongs to, and a constructor that is inherited."""

    def __init__(self, number):
        self.number = number

    def quantities(self, bags, sites):
        return {"x": self.number}

    @classmethod
    def for_model(cls, model, bags):
        return cls(1)


class Other(Held):
    pass


DIFFERENT = [
    (MODEL, replace(MODEL, inducing_points=INDUCING_POINTS + 1e-12)),
    (jax.random.key(1), jax.random.key(2)),
    (dist.Beta(1.0, 1.0), dist.Beta(5.0, 1.0)),
    (dist.LogNormal(0.0, 1.0), dist.LogNormal(5.0, 1.0)),
    (dist.Normal(0.0, 1.0), dist.Laplace(0.0, 1.0)),
    (BMIL(), BMIL(intercept_mean=1.0)),
    (GPMIL(RBF(4.0, 1.3), INDUCING_POINTS), GPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=1.0)),
    (DiverseDensity(), DiverseDensity(concept_prior=dist.Normal(0.0, 2.0))),
    (CardinalityModel(), CardinalityModel(NormalCardinality(mu=dist.Beta(2.0, 2.0)))),
    (VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, scale_mixture=GammaScaleMixture(0.5, 2.5)), MODEL),
    (ScaleMixture(lambda x: -x), ScaleMixture(lambda x: -2 * x)),
    (partial(min, 1), partial(min, 2)),
    (partial(nuts, seed=1), partial(nuts, seed=2)),
    (_times(2.0), _times(3.0)),
    (jax.jit(_times(2.0)), jax.jit(_times(3.0))),
    (Held(1).quantities, Held(2).quantities),
    (Held(1), Held(2)),
    (Held.for_model, Other.for_model),
    ({"a": (np.zeros(3), [1])}, {"a": (np.ones(3), [1])}),
    (1, 1.0),
    ("1", 1),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=map(str, range(len(DIFFERENT))))
def test_descriptions_of_different_values_differ(one, other):
    assert described(one) != described(other)


SUBJECTS = """
from functools import partial
import jax, numpy as np, numpyro.distributions as dist
from milzoo.inference.runtime.checkpoint import described
from milzoo.inference.traceable import TraceableChain, traceable_engine
from milzoo.models import *
points = np.array([[-0.8, 0.3], [0.7, 0.8]])
def quantities(bags, sites):
    return {"x": max(sites, key=lambda name: sites[name])}
subjects = [
    VGPMIL(RBF(dist.LogNormal(0.0, 1.0), 1.3), points, mean=-0.8),
    VGPMIL(RBF(4.0, 1.3), points, scale_mixture=ScaleMixture(lambda x: -abs(x))),
    DPMIL(np.zeros(2), np.eye(2), 4.0),
    CardinalityModel(NormalCardinality(mu=dist.Beta(4.0, 4.0)), dist.HalfNormal(1.0)),
    DiverseDensity(scale_prior=dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), dist.transforms.ExpTransform())),
    ScoreThreshold(), BMIL(), traceable_engine("nuts", thin=3), traceable_engine("gibbs"),
    traceable_engine("svi"),
    quantities, jax.jit(quantities), partial(quantities, sites={"a": dist.Normal(0.0, 1.0)}),
    (dist.Normal(0.0, 1.0), {"a": quantities}), np.float64(0.1),
]
print("\\n".join(described(subject) for subject in subjects))
"""


@pytest.mark.slow
def test_descriptions_are_the_same_in_every_process():
    said = [
        subprocess.run(
            [sys.executable, "-c", SUBJECTS],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == 15
    assert " at 0x" not in said[0]


@pytest.mark.slow
def test_descriptions_do_not_depend_on_use_or_on_copies():
    prior = dist.Beta(4.0, 4.0)
    before = described(prior)
    prior.sample(jax.random.key(0)), prior.log_prob(0.5), prior.mean
    assert described(prior) == before
    assert described(MODEL) == described(VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS.copy(), mean=-0.8))
    assert described(np.float64(0.1)) == described(0.1)
    of_bags = identity(MODEL, BAGS)["bags"]
    assert of_bags == identity(MODEL, replace(BAGS, labels=BAGS.labels.copy()))["bags"]
    moved = BAGS.instances.copy()
    moved[0, 0] += 1e-12
    assert of_bags != identity(MODEL, replace(BAGS, instances=moved))["bags"]


# --------------------------------------------------------------------- refused, killed early, twice


def test_a_call_that_is_refused_leaves_nothing_behind(tmp_path, without_type_checks):
    folder = tmp_path / "chains"
    for wrong in ({"program": "margnal"}, {"num_samples": 0}, {"num_chains": 0}):
        with pytest.raises(ValueError, match=r"program is|num_samples is|num_chains is"):
            nuts(MODEL, BAGS, seed=1, checkpoint=folder, **(COUNTS | wrong))
    assert not folder.exists()


def test_a_folder_whose_header_was_not_finished_begins_anew(tmp_path):
    (tmp_path / "run.json.123.unfinished").write_text('{"milz')
    folder = BlockFolder(tmp_path, {"engine": "nuts"})
    folder.write(0, np.zeros(1), np.zeros(1), 0.0)
    assert BlockFolder(tmp_path, {"engine": "nuts"}).num_blocks == 1


@pytest.mark.in_ci
def test_two_processes_on_one_run_do_no_harm(tmp_path):
    """One that was taken for dead, and its successor: each writes the same under one number."""
    path = tmp_path / "new" / "journal.jsonl"
    first, second = Journal(path, {}), Journal(path, {})
    for number in range(2):
        first.append({"n": number})
        second.append({"n": number})
    assert Journal(path, {}).entries == [{"n": 0}, {"n": 1}]
    # A line that one tore from the other is lost, and what stands behind it is done again.
    header, zero, *_ = path.read_text().splitlines(keepends=True)
    path.write_text(header + zero + '{"number": 1, {"number"\n{"number": 2, "n": 2}\n')
    assert Journal(path, {}).entries == [{"n": 0}]
    folders = [BlockFolder(tmp_path / "run", {}) for _ in range(2)]
    for number in range(2):
        for folder in folders:
            folder.write(number, np.zeros(1), np.full(1, float(number)), 0.0)
    rows = [row.tolist() for row, _ in BlockFolder(tmp_path / "run", {}).blocks(like=np.zeros(1))]
    assert rows == [[0.0], [1.0]]
