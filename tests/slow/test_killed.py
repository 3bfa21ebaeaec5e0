"""Processes that are killed at random moments, twenty times, and begun again."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 20

NUTS = """
import sys
import numpy as np
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import nuts
from milzoo.models import RBF, VGPMIL

model = VGPMIL(RBF(4.0, 1.3), np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]]), mean=-0.8)
bags, _ = simulate(model, simulate_instances(200, range(1, 9), num_features=2, seed=3), seed=1)
counts = {"num_warmup": 3000, "num_samples": 6000, "num_chains": 2}
found = nuts(model, bags, seed=1, checkpoint=sys.argv[1] or None, **counts)
np.savez(sys.argv[2], **found.stored_draws())
"""

CALIBRATION = """
import sys
import numpy as np
from milzoo.datasets import simulate_instances
from milzoo.diagnostics import simulation_calibration
from milzoo.models import RBF, VGPMIL

model = VGPMIL(RBF(4.0, 1.3), np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]]), mean=-0.8)
design = simulate_instances(12, range(1, 5), num_features=2, seed=3)
options = {"num_warmup": 150, "thin": 3, "simulations": 300}
found = simulation_calibration(
    model, "nuts", design, seed=1, checkpoint=sys.argv[1] or None, **options
)
np.savez(sys.argv[2], **found.pit)
"""

STREAM = """
import sys
from pathlib import Path
import numpy as np
from milzoo.datasets import simulate, simulate_instances, stream
from milzoo.inference import coordinate_ascent
from milzoo.models import RBF, VGPMIL

model = VGPMIL(RBF(100.0, 0.5), np.random.default_rng(1).normal(size=(20, 2)), mean=-5.0)
folder = Path(sys.argv[2]).parent / "bags"
if not folder.exists():
    bags, _ = simulate(model, simulate_instances(9000, range(1, 9), num_features=2, seed=3), seed=1)
    bags.to_parquet(folder / "bags.parquet")
given = stream(folder, chunk_instances=500)
found = coordinate_ascent(
    model, given, seed=1, checkpoint=sys.argv[1] or None, max_steps=150, tolerance=0.0
)
np.savez(sys.argv[2], elbo=found.elbo, **found.stored_draws())
"""

BATCHES = STREAM.replace("import coordinate_ascent", "import natural_gradient").replace(
    """coordinate_ascent(
    model, given, seed=1, checkpoint=sys.argv[1] or None, max_steps=150, tolerance=0.0
)""",
    """natural_gradient(
    model, given, seed=1, checkpoint=sys.argv[1] or None, max_steps=6000, batch_instances=500
)""",
)
assert "natural_gradient(" in BATCHES


def _amount(checkpoint: Path) -> int:
    """How much is written."""
    if checkpoint.is_dir():
        return len(list(checkpoint.glob("block_*.npz")))
    return checkpoint.read_bytes().count(b"\n") if checkpoint.exists() else 0


def _begin(program: str, checkpoint: Path | str, result: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program, str(checkpoint), str(result)])


@pytest.mark.parametrize(
    ("program", "most_written"),
    [(NUTS, 3), (CALIBRATION, 10), (STREAM, 3), (BATCHES, 100)],
    ids=["nuts", "calibration", "stream", "batches"],
)
def test_run_killed_twenty_times_ends_as_an_unbroken_one(program, most_written, tmp_path):
    import numpy as np

    chance = random.Random(1)
    checkpoint, result, unbroken = (tmp_path / name for name in ("run", "result.npz", "whole.npz"))
    amounts = []
    for _ in range(KILLS):
        before, process = _amount(checkpoint), _begin(program, checkpoint, result)
        wanted = before + chance.randint(1, most_written)
        while _amount(checkpoint) < wanted and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # it had not come to its end
        amounts.append(_amount(checkpoint))
        assert amounts[-1] >= wanted  # nothing that was finished is lost
    assert not result.exists()
    for where, path in ((checkpoint, result), ("", unbroken)):
        assert _begin(program, where, path).wait() == 0
    with np.load(result) as found, np.load(unbroken) as expected:
        assert set(found) == set(expected)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
