"""What long runs write down: draws of chains after a kill are those of an unbroken run.

Real processes are killed in tests/slow/test_killed.py.
"""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import gibbs, nuts
from milzoo.inference.checkpoint import BlockFolder, Journal, described, identity
from milzoo.models import RBF, VGPMIL

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
MODEL = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)
BAGS, _ = simulate(MODEL, simulate_instances(12, range(1, 5), num_features=2, seed=3), seed=1)
COUNTS = {"num_warmup": 150, "num_samples": 250, "num_chains": 2}


@pytest.fixture(
    scope="module", params=[nuts, partial(gibbs, keep="evidence")], ids=["nuts", "gibbs"]
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


def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_draws(engine, unbroken, tmp_path):
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


def test_a_finished_run_is_read_and_not_run(engine, unbroken, tmp_path, monkeypatch):
    folder = tmp_path / "chains"
    whole = engine(checkpoint=folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = engine(checkpoint=folder)
    assert _is_the_same(unbroken, again)
    assert again.seconds == whole.seconds
    assert again.sampling_seconds == whole.sampling_seconds
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


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


def test_what_is_no_checkpoint_is_not_written_over(tmp_path):
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


def test_a_journal_whose_first_line_was_not_finished_begins_anew(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path, {"engine": "nuts"}).append({"n": 1})
    header = path.read_bytes().splitlines(keepends=True)[0]
    for length in (0, 3, len(header) - 1):
        path.write_bytes(header[:length])
        assert Journal(path, {"engine": "nuts"}).entries == []
        assert path.read_bytes() == header


def test_keys_and_numbers_come_back_as_they_were(tmp_path):
    folder = BlockFolder(tmp_path / "run", {})
    with jax.enable_x64(True):
        state = {"key": jax.random.key(3), "step": jax.numpy.asarray(0.1), "count": (7,)}
        state = jax.tree.map(jax.numpy.asarray, state)
        folder.write(state, np.arange(3.0), 0.5)
        back = folder.state(like=state)
    assert jax.random.key_data(back["key"]).tolist() == jax.random.key_data(state["key"]).tolist()
    assert back["key"].dtype == state["key"].dtype
    assert float(back["step"]) == 0.1
    assert back["count"][0].dtype == state["count"][0].dtype
    assert folder.blocks(like=np.zeros(3))[0][0].tolist() == [0.0, 1.0, 2.0]


def test_descriptions_tell_apart_what_differs_and_nothing_else():
    assert described(MODEL) == described(VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS.copy(), mean=-0.8))
    assert described(MODEL) != described(replace(MODEL, inducing_points=INDUCING_POINTS + 1e-12))
    assert described(jax.random.key(1)) != described(jax.random.key(2))
    assert described(partial(nuts, seed=1)) == "nuts(seed=1)"
    of_bags = identity(MODEL, BAGS)["bags"]
    assert of_bags == identity(MODEL, replace(BAGS, labels=BAGS.labels.copy()))["bags"]
    moved = BAGS.instances.copy()
    moved[0, 0] += 1e-12
    assert of_bags != identity(MODEL, replace(BAGS, instances=moved))["bags"]
