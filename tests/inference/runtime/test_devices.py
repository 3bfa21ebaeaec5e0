"""Eight devices, or two processes, that share the bags: one bound, one q(u), and no hang."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from milzoo.datasets import Bags, simulate
from milzoo.inference import Posterior, coordinate_ascent, gibbs, nuts
from milzoo.inference.closed_form import dpmil
from milzoo.inference.runtime.devices import Devices

PROGRAM = Path(__file__).with_name("fit_in_a_process.py")
# Seconds: for two processes that compile beside each other and beside other tests.
PATIENCE = 300
HEARTBEAT = 10
STEPS = 12


class Case(NamedTuple):
    name: str
    bags: Bags
    in_one_piece: Callable[[int], Posterior]  # by how many steps


@pytest.fixture(scope="module")
def case_of(fit_in_a_process):
    @cache
    def of(name):
        model = fit_in_a_process.MODELS[name]
        bags = simulate(model, fit_in_a_process.design(), seed=2)[0]

        @cache
        def in_one_piece(steps):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dpmil, "MAX_SAMPLE", fit_in_a_process.MAX_SAMPLE)
                return coordinate_ascent(
                    model, bags, seed=0, max_steps=steps, tolerance=0.0, num_draws=10
                )

        return Case(name, bags, in_one_piece)

    return of


@pytest.fixture(params=["vgpmil", "vwsgp", "dpmil"])
def case(request, case_of):
    return case_of(request.param)


@pytest.fixture(params=["vgpmil", "vwsgp"])
def sparse_gp_case(request, case_of):
    return case_of(request.param)


def assert_found(folder, expected):
    with np.load(folder / "found.npz") as found:
        np.testing.assert_allclose(found["elbo"], expected.elbo, rtol=1e-10)
        of_q = [name for name in found if found[name].dtype == float and name != "elbo"]
        assert "mean" in of_q and len(of_q) >= 2
        for name in of_q:
            np.testing.assert_allclose(
                found[name], getattr(expected.approximation, name), rtol=1e-8, atol=1e-8
            )


def started(folder, *arguments):
    command = [sys.executable, str(PROGRAM), str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def shared(bags, folder):
    """A part for each of two processes."""
    for process, chosen in enumerate((np.arange(20), np.arange(20, 50))):
        bags.select(chosen).to_parquet(folder / str(process) / "bags.parquet")


def two(folder, *arguments, devices=(1, 1)):
    port = free_port()
    common = ("--of", 2, "--port", port, "--heartbeat", HEARTBEAT, *arguments)
    return [
        started(folder, "--process", process, "--devices", number, *common)
        for process, number in enumerate(devices)
    ]


def ended(process):
    """What it complained of; killed if it does not end."""
    try:
        return process.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["--stream"]], ids=["memory", "stream"])
def test_eight_devices_give_the_approximation_of_one(case, tmp_path, way):
    name, bags, in_one_piece = case
    bags.to_parquet(tmp_path / "0" / "bags.parquet")
    alone = started(tmp_path, "--name", name, "--devices", 8, "--steps", STEPS, *way)
    assert ended(alone) == "" and alone.returncode == 0
    assert_found(tmp_path / "0", in_one_piece(STEPS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "devices"), [([], (1, 1)), (["--stream"], (3, 3))], ids=["memory", "stream"]
)
def test_two_processes_give_the_approximation_of_one(case, tmp_path, way, devices):
    name, bags, in_one_piece = case
    shared(bags, tmp_path)
    processes = two(tmp_path, "--name", name, "--steps", STEPS, *way, devices=devices)
    complaints = [ended(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], complaints
    for number in ("0", "1"):
        assert_found(tmp_path / number, in_one_piece(STEPS))


@pytest.mark.slow
def test_batches_of_two_processes_reach_the_full_approximation(case_of, tmp_path):
    name, bags, in_one_piece = case_of("vwsgp")
    shared(bags, tmp_path)
    processes = two(tmp_path, "--name", name, "--stream", "--batches", "--steps", 150)
    complaints = [ended(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], complaints
    with (
        np.load(tmp_path / "0" / "found.npz") as one,
        np.load(tmp_path / "1" / "found.npz") as other,
    ):
        np.testing.assert_array_equal(one["elbo"], other["elbo"])
        np.testing.assert_array_equal(one["mean"], other["mean"])
        best = in_one_piece(100).elbo[-1]
        assert best - 0.5 < one["elbo"][-1] < best + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_process_is_reported_and_the_run_resumes(sparse_gp_case, tmp_path, victim):
    name, bags, in_one_piece = sparse_gp_case
    shared(bags, tmp_path)
    endless = ("--name", name, "--stream", "--checkpoint", "--steps", 10**6)
    processes = two(tmp_path, *endless)
    wait_for(tmp_path / str(victim) / "steps" / "block_000004.npz", processes)
    killed, left = processes[victim], processes[1 - victim]
    killed.send_signal(signal.SIGKILL)
    since = time.monotonic()
    complaint = ended(left)
    # As soon as it asks for the other's sums; where that one led, JAX ends it by itself.
    assert time.monotonic() - since < 60
    assert left.returncode != 0
    assert "could not reach another" in complaint or "another task died" in complaint
    assert not (tmp_path / str(1 - victim) / "found.npz").exists()
    ended(killed)
    # One may be a step ahead.
    last = sorted((tmp_path / "0" / "steps").glob("block_*.npz"))[-1]
    last.unlink()
    steps = len(list((tmp_path / "0" / "steps").glob("block_*.npz"))) + 2
    for process in two(tmp_path, *endless[:-1], steps):
        complaint = ended(process)
        assert process.returncode == 0, complaint
    for number in ("0", "1"):
        assert_found(tmp_path / number, in_one_piece(steps))


def wait_for(file: Path, processes):
    until = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < until and all(p.poll() is None for p in processes)
        time.sleep(0.02)


@pytest.mark.slow
def test_a_bad_row_of_one_process_ends_both(case, tmp_path):  # of DPMIL, while it takes a sample
    name, bags, _ = case
    shared(bags, tmp_path)
    frame = bags.select(np.arange(20, 50)).to_frame()
    frame.loc[33, "x0"] = np.nan
    frame.to_parquet(tmp_path / "1" / "bags.parquet")
    since = time.monotonic()
    well, ill = two(tmp_path, "--name", name, "--stream")
    assert "row 33 of bags.parquet holds nan in feature 0" in ended(ill)
    assert "process 0 of 2 ends because another failed" in ended(well)
    assert time.monotonic() - since < 60
    assert well.returncode != 0 and ill.returncode != 0


@pytest.mark.slow
def test_processes_that_fit_different_models_are_refused(tmp_path, fit_in_a_process):
    model, design = fit_in_a_process.MODELS["vwsgp"], fit_in_a_process.design()
    shared(simulate(model, design, seed=2)[0], tmp_path)
    port = free_port()
    own = ("--of", 2, "--port", port, "--heartbeat", HEARTBEAT)
    one = started(tmp_path, "--process", 0, "--name", "vgpmil", *own)
    other = started(tmp_path, "--process", 1, "--name", "vwsgp", *own)
    complaints = [ended(process) for process in (one, other)]
    assert all(process.returncode != 0 for process in (one, other))
    assert any("processes were given different models" in complaint for complaint in complaints)


# ------------------------------------------------------------------ chains


@pytest.fixture(scope="module")
def chains_of(fit_in_a_process, case_of):
    """In this process, on the devices that it is given."""

    @cache
    def of(engine, name, mesh=None):
        model, bags = fit_in_a_process.MODELS[name], case_of(name).bags
        return engine(model, bags, seed=0, mesh=mesh, **fit_in_a_process.CHAINS)

    return of


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_chains_on_a_mesh_are_the_chains_without(chains_of, num_devices):
    mesh = jax.make_mesh((num_devices,), ("bags",), devices=jax.devices()[:num_devices])
    expected = chains_of(gibbs, "vwsgp").stored_draws()
    found = chains_of(gibbs, "vwsgp", mesh).stored_draws()
    np.testing.assert_array_equal(found["inducing_value"], expected["inducing_value"])


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "name"), [(nuts, "vgpmil"), (gibbs, "vwsgp")])
def test_chains_of_two_processes_are_those_of_one(chains_of, case_of, tmp_path, engine, name):
    for process in ("0", "1"):
        case_of(name).bags.to_parquet(tmp_path / process / "bags.parquet")
    # Four of six chains in one process and two in the other.
    arguments = ("--name", name, "--chains", engine.__name__, "--checkpoint")
    processes = two(tmp_path, *arguments, devices=(2, 1))
    complaints = [ended(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], complaints
    expected = chains_of(engine, name).stored_draws()
    for process in ("0", "1"):
        with np.load(tmp_path / process / "draws.npz") as found:
            assert set(found) == set(expected)
            for site, drawn in expected.items():
                np.testing.assert_allclose(found[site], drawn, rtol=1e-8, atol=1e-10)
    # A file for every 100 steps of its own chains: 100 and 20 of warm-up, 100 and 30 of draws.
    for process, num_own in (("0", 4), ("1", 2)):
        blocks = sorted((tmp_path / process / "steps").glob("block_*.npz"))
        assert len(blocks) == 4
        with np.load(blocks[-1]) as block:
            assert block["row 0"].shape[:2] == (num_own, 30)


@pytest.mark.slow
def test_processes_that_sample_other_bags_are_refused(case_of, tmp_path):
    shared(case_of("vwsgp").bags, tmp_path)
    processes = two(tmp_path, "--name", "vwsgp", "--chains", "gibbs")
    complaints = [ended(process) for process in processes]
    assert all(process.returncode != 0 for process in processes)
    assert any("given different models, bags or options" in complaint for complaint in complaints)


@pytest.mark.in_ci
def test_chains_that_cannot_be_dealt_evenly_are_refused(chains_of, case_of, fit_in_a_process):
    model, mesh = fit_in_a_process.MODELS["vwsgp"], jax.make_mesh((2,), ("bags",))
    with pytest.raises(ValueError, match="num_chains is 3 and mesh has 2 devices; expected a mult"):
        gibbs(model, case_of("vwsgp").bags, seed=0, num_chains=3, mesh=mesh)


# ------------------------------------------------------------------ devices themselves


def test_one_device_without_a_mesh():
    devices = Devices(None)
    assert devices.num_parts == 1 and not devices.spans_processes
    assert devices.extremes(7) == (7, 7)
    placed = devices.put([np.arange(3.0)])
    doubled = devices.on_parts(lambda part, by: part * by, (placed,), np.array(2.0))
    np.testing.assert_array_equal(devices.total(doubled), [0.0, 2.0, 4.0])
    np.testing.assert_array_equal(devices.gathered(np.eye(2)), np.eye(2))


def test_a_mesh_of_other_axes_is_refused():
    with pytest.raises(ValueError, match=r"mesh has axes \('chains',\); expected \('bags',\)"):
        Devices(jax.make_mesh((1,), ("chains",)))
