"""Bags in chunks: the same bound and the same q(u) as in memory, whatever the chunks."""

import time
from dataclasses import fields, replace
from itertools import batched, pairwise, product

import jax
import numpy as np
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances, stream
from milzoo.datasets.padding import padded
from milzoo.inference import Posterior, coordinate_ascent
from milzoo.inference.closed_form import Options, closed_form
from milzoo.inference.closed_form.drivers import Passes
from milzoo.inference.runtime.chunks import (
    AlternatingBuffers,
    ChunkBuffers,
    in_parts,
    in_pieces,
    padded_chunks,
)
from milzoo.inference.runtime.devices import Devices
from milzoo.models import DPMIL, VGPMIL, VWSGP, GammaScaleMixture, Gaussian, Probit, ProbitGPMIL

# The smallest chunk is smaller than the largest bag.
CHUNKS = (7, 40, 10_000)


def likelihood(name: str, noise: float) -> dict:
    """Fields of a `VWSGP`."""
    return {"likelihood": {"probit": Probit, "gaussian": Gaussian}[name](noise)}


@pytest.fixture(scope="module")
def design():
    return simulate_instances(50, range(1, 12), 2, seed=1)


@pytest.fixture(scope="module")
def fits(design, when_asked_for):
    """By name: model, bags, and the fit in memory."""
    few = VGPMIL.for_bags(design, num_inducing=8, variance=3.0, length_scale=1.0, mean=-1.5)
    sums = VWSGP.for_bags(design, num_inducing=8, variance=0.5, length_scale=1.0)
    models = {
        "vgpmil": few,
        "vwsgp": sums,
        "probit": replace(sums, **likelihood("probit", 1.0)),
        "gaussian": replace(sums, **likelihood("gaussian", 0.3)),
        "probit instances": ProbitGPMIL(few.kernel, few.inducing_points, few.mean),
    }
    source = models | {"gamma": few}
    drawn = when_asked_for(lambda name: simulate(source[name], design, seed=2)[0])
    models["gamma"] = replace(few, scale_mixture=GammaScaleMixture(2.0, 1.0))
    labelled = instances_known(drawn["vgpmil"])
    models |= {
        "dpmil": DPMIL.for_bags(labelled, 4),
        "diagonal": DPMIL.for_bags(labelled, 4, covariance="diagonal", needs_witness=False),
        "known": DPMIL.for_bags(labelled, 4, supervision="instances"),
    }

    def fit(name):
        model = models[name]
        bags = labelled if isinstance(model, DPMIL) else drawn[name]
        return model, bags, coordinate_ascent(model, bags, seed=0, max_steps=12)

    return when_asked_for(fit)


def instances_known(bags):
    """With the label of every second instance of a positive bag, the first of them a witness."""
    position = np.arange(bags.num_instances) - bags.starts[bags.bag_index]
    known = np.where(position % 2 == 0, position % 4 == 0, -1)
    return replace(bags, instance_labels=np.where(bags.labels[bags.bag_index] == 1, known, 0))


def assert_same_factors(found, expected):
    """All numbers that are left of the bags in chunks."""
    names = [f.name for f in fields(found) if isinstance(getattr(found, f.name), np.ndarray)]
    assert "mean" in names and len(names) >= 2
    for name in names:
        one, other = (getattr(q, name) for q in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chunk_instances"),
    [
        *product(("vgpmil", "vwsgp", "dpmil"), CHUNKS),
        *product(
            ("gamma", "probit", "gaussian", "probit instances", "diagonal", "known"), CHUNKS[1:2]
        ),
    ],
)
def test_stream_gives_the_posterior_of_bags_in_memory(fits, tmp_path, name, chunk_instances):
    bags = fits[name][1]
    bags.to_parquet(tmp_path / "bags.parquet")
    columns = {"bag_label": None} if name == "gaussian" else {}
    given = stream(tmp_path, chunk_instances=chunk_instances, **columns)
    assert_same_fit(fits[name], given)


def assert_same_fit(fit, given):
    """Of a stream as of its bags in memory."""
    model, _, expected = fit
    found = coordinate_ascent(model, given, seed=0, max_steps=12)
    assert found.status == expected.status
    assert type(found.approximation) is type(expected.approximation)
    np.testing.assert_allclose(found.elbo, expected.elbo, rtol=1e-10)
    assert_same_factors(found.approximation, expected.approximation)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chunk_instances"), [*product(("vgpmil", "vwsgp"), CHUNKS)])
def test_arrays_give_the_bound_and_the_posterior_of_memory(fits, tmp_path, name, chunk_instances):
    written_as_arrays(fits[name][1], tmp_path)
    assert_same_fit(fits[name], stream(tmp_path, chunk_instances=chunk_instances))


def written_as_arrays(bags, folder):
    """Each in a file of its own."""
    for name in ("instances", "bag_index", "labels"):
        np.save(folder / f"{name}.npy", np.asarray(getattr(bags, name)))


@pytest.mark.in_ci
def test_padding_says_nothing(design):
    bags = simulate(VWSGP.as_published(design, num_inducing=4), design, seed=3)[0]
    parts = [bags.select(np.arange(40)), bags.select(np.arange(40, 50))]
    one, two, nothing = padded_chunks(parts, num_instances=100, num_parts=3)
    for part, whole in zip(parts, (one, two), strict=True):
        assert whole.num_instances % 100 == 0 and whole.num_instances >= part.num_instances
        assert whole.num_bags == 48 and whole.present.sum() == part.num_bags
        is_none = np.arange(whole.num_instances) >= part.num_instances
        assert not whole.present[whole.bag_index[is_none]].any()
        np.testing.assert_array_equal(whole.instances[~is_none], part.instances)
    assert not nothing.present.any()
    (full,) = padded_chunks([bags.select(np.arange(32))], num_instances=10, num_parts=1)
    assert full.num_bags == 40  # one is for padding


def test_padded_buffers_are_not_copied_to_a_device(design):
    (part,) = padded_chunks([design], num_instances=100, num_parts=1)
    with jax.enable_x64(True):
        for name in ("instances", "bag_index"):
            filled = getattr(part, name)
            placed = jax.device_put(filled, jax.devices("cpu")[0])
            assert placed.unsafe_buffer_pointer() == filled.ctypes.data


@pytest.mark.slow
def test_cached_chunks_stay_on_their_device(fits, tmp_path):
    model, bags, expected = fits["vwsgp"]
    bags.to_parquet(tmp_path / "bags.parquet")
    given = stream(tmp_path, chunk_instances=40)
    turned_round = jax.sharding.Mesh(np.array(jax.devices()[::-1]), ("bags",))
    found = coordinate_ascent(model, given, seed=0, max_steps=12, mesh=turned_round)
    np.testing.assert_allclose(found.elbo, expected.elbo, rtol=1e-10)
    assert_same_factors(found.approximation, expected.approximation)


def test_buffers_are_reused_after_two_turns_and_no_sooner():
    buffers = AlternatingBuffers()
    for number in range(6):
        buffers.next_turn()
        given = [buffers(shape, np.dtype(float)) for shape in ((5, 3), (5, 3), (4, 3))]
        for index, array in enumerate(given):
            if number >= 2:  # as it was left
                np.testing.assert_array_equal(array, 10 * (number - 2) + index)
            array[:] = 10 * number + index
        for index, array in enumerate(given):  # no later buffer of this turn overwrote it
            np.testing.assert_array_equal(array, 10 * number + index)


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_chunks_in_use_are_not_overwritten(fits, tmp_path, num_devices):
    """Of two turns, while the next chunk is read: with chunks of one bag each, some longer."""
    model, bags, _ = fits["vwsgp"]
    written_as_arrays(bags, tmp_path)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), ("bags",))
    form = closed_form(model, Options())
    given = stream(tmp_path, chunk_instances=7)
    passes = Passes(form, given, Devices(mesh), tmp_path / "kept")
    chunks, before = list(batched(given, num_devices)), []
    for number, parts in enumerate(passes._filled()):
        time.sleep(0.01)  # the next is read meanwhile
        under_way = zip(chunks[max(number - 1, 0) : number + 1], [*before, parts], strict=True)
        for chunk, filled in (pair for turn in under_way for pair in zip(*turn, strict=False)):
            instances, rest = np.split(filled.instances, [chunk.num_instances])
            np.testing.assert_array_equal(instances, chunk.instances)
            assert not rest.any() and len(filled.instances) % 7 == 0
            if num_devices == 1:  # else a longer chunk beside it may need more rows
                assert (
                    passes._read_to.lengthened(filled.instances, len(filled.instances)) is not None
                )
        before = [parts]


def test_chunks_are_lengthened_in_their_own_buffer_alone():
    buffers, double = ChunkBuffers(10, num_turns=2), np.dtype(float)
    short, long = buffers((7, 3), double), buffers((11, 3), double)
    assert short.shape == (7, 3) and long.shape == (11, 3) and not np.shares_memory(short, long)
    for values, num_rows in ((short, 10), (long, 20)):
        whole = buffers.lengthened(values, num_rows)
        assert whole.shape == (num_rows, 3) and whole.ctypes.data == values.ctypes.data
        assert buffers.lengthened(values, num_rows + 1) is None
        assert buffers.lengthened(values[1:], 3) is None
    assert buffers.lengthened(np.zeros((7, 3)), 7) is None


def test_buffers_are_reused_for_smaller_arrays():
    buffers, double = AlternatingBuffers(), np.dtype(float)
    large, other = (buffers.next_turn()((6, 2), double) for _ in range(2))
    small = buffers.next_turn()((3,), double)
    assert np.shares_memory(small, large) and not np.shares_memory(small, other)
    again = [buffers.next_turn()((7, 2), double) for _ in range(3)]
    assert [array.shape for array in again] == 3 * [(7, 2)]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("num_bags", [1, 7, 31, 32, 300])
def test_few_shapes_are_padded_to_and_not_far(num_bags):
    def filled(num_bags: int) -> int:
        bags = Bags.from_arrays(np.zeros((num_bags, 1)), np.arange(num_bags))
        return padded_chunks([bags], num_instances=num_bags, num_parts=1)[0].num_bags

    assert num_bags < filled(num_bags) <= 1.25 * (num_bags + 1)
    assert len({filled(n) for n in range(num_bags, 2 * num_bags)}) <= 5


@pytest.mark.parametrize("num_parts", [1, 3, 8, 100])
def test_parts_are_the_bags_in_their_order(design, num_parts):
    parts = in_parts(design, num_parts)
    assert len(parts) <= min(num_parts, design.num_bags)
    names = [name for part in parts for name in part.names]
    assert names == list(design.names)
    largest = max(part.num_instances for part in parts)
    assert largest <= design.num_instances / num_parts + design.bag_sizes.max()


@pytest.mark.parametrize("num_instances", [1, 11, 40, 10_000])
def test_pieces_are_the_bags_in_their_order(design, tmp_path, num_instances):
    design.to_parquet(tmp_path / "bags.parquet")
    for given in (design, stream(tmp_path, chunk_instances=60, bag_label=None)):
        pieces = list(in_pieces(given, num_instances))
        assert [name for piece in pieces for name in piece.names] == list(design.names)
        assert all(p.num_instances <= num_instances or p.num_bags == 1 for p in pieces)
        if given is design:  # no piece would hold the next one's first bag
            sizes = [p.num_instances + q.bag_sizes[0] for p, q in pairwise(pieces)]
            assert all(size > num_instances for size in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgpmil", "vwsgp", "gaussian", "dpmil"])
def test_mesh_gives_the_posterior_of_one_device(fits, tmp_path, name):
    model, bags, expected = fits[name]
    mesh = jax.make_mesh((jax.device_count(),), ("bags",))
    bags.to_parquet(tmp_path / "bags.parquet")
    columns = {"bag_label": None} if name == "gaussian" else {}
    for given in (bags, stream(tmp_path, chunk_instances=40, **columns)):
        found = coordinate_ascent(model, given, seed=0, max_steps=12, mesh=mesh)
        np.testing.assert_allclose(found.elbo, expected.elbo, rtol=1e-10)
        assert_same_factors(found.approximation, expected.approximation)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgpmil", "vwsgp", "probit", "gaussian"])
@pytest.mark.parametrize("way", ["memory", "stream"])
def test_kernels_in_32_bit_hardly_move_the_posterior(fits, tmp_path, name, way):
    """It moves by less than 1e-4 of its sds."""
    model, bags, expected = fits[name]
    given = bags
    if way == "stream":
        bags.to_parquet(tmp_path / "bags.parquet")
        columns = {"bag_label": None} if name == "gaussian" else {}
        given = stream(tmp_path, chunk_instances=100, **columns)
    found = coordinate_ascent(model, given, seed=0, max_steps=12, dtype="float32")
    assert found.status.kind == expected.status.kind
    np.testing.assert_allclose(found.elbo, expected.elbo, rtol=1e-6)
    scale = expected.approximation.scale_tril
    deviation = np.sqrt((scale**2).sum(axis=1))
    moved = np.abs(found.approximation.mean - expected.approximation.mean) / deviation
    # Entries of the kernel are rounded by 6e-8 of themselves; were the errors of all 300 instances
    # alike, and made ten times as large by L⁻ᵀ, that would be 2e-4. More than none: it is 32 bit.
    assert 0 < moved.max() < 1e-4
    found_deviation = np.sqrt((found.approximation.scale_tril**2).sum(axis=1))
    np.testing.assert_allclose(found_deviation, deviation, rtol=1e-4)


@pytest.mark.in_ci
@pytest.mark.parametrize("name", ["vgpmil", "vwsgp"])
def test_chunks_share_one_cholesky_factor(fits, name):
    """Of hyper-parameters that are arguments, each chunk's program would factorise K_ZZ again."""
    model, bags, _ = fits[name]
    form = closed_form(model, Options())

    def statistics(form, chunk, q):
        return form.e_step(form.prepare(chunk), q, None)[0]

    with jax.enable_x64(True):
        q = form.start(lambda rows, at_most: rows(bags), jax.random.key(0))[0]
        evaluated, given = form.evaluated(), padded(bags)
        assert "cholesky" in str(jax.make_jaxpr(statistics)(form, given, q))
        assert "cholesky" not in str(jax.make_jaxpr(statistics)(evaluated, given, q))
        other = {"variance": 2.0 * float(model.kernel.variance)}
        for values in ({}, other):
            found, expected = (
                jax.jit(statistics)(one.with_hyperparameters(values) if values else one, given, q)
                for one in (evaluated, form)
            )
            np.testing.assert_allclose(found.gram, expected.gram, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("at_most", "stride"), [(10_000, 1), (100, 3), (70, 5), (1, 300)])
def test_subsample_is_spaced_evenly_over_chunks(fits, tmp_path, at_most, stride):
    model, bags, _ = fits["dpmil"]
    assert 4 * 70 < bags.num_instances <= 300
    form = closed_form(model, Options())
    bags.to_parquet(tmp_path / "bags.parquet")
    passes = Passes(form, stream(tmp_path, chunk_instances=40), Devices(None), tmp_path)
    found, whole = passes.subsample(lambda own: own.instances, at_most), bags.instances
    expected = whole[:1] if at_most == 1 else whole[::stride]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_instances_in_many_blocks_give_the_sums_of_all(fits):
    model, _, _ = fits["vgpmil"]
    bags = simulate(model, simulate_instances(500, range(1, 9), 2, seed=5), seed=2)[0]
    assert bags.num_instances > 2 * 1024
    expected = coordinate_ascent(model, bags, seed=0, max_steps=3, tolerance=0.0)
    mesh = jax.make_mesh((1,), ("bags",))
    found = coordinate_ascent(model, bags, seed=0, max_steps=3, tolerance=0.0, mesh=mesh)
    np.testing.assert_allclose(found.elbo, expected.elbo, rtol=1e-10)
    np.testing.assert_allclose(found.approximation.mean, expected.approximation.mean, atol=1e-8)


@pytest.mark.slow
def test_posterior_of_a_stream_draws_predicts_and_saves(fits, tmp_path):
    model, bags, expected = fits["vgpmil"]
    bags.to_parquet(tmp_path / "bags.parquet")
    found = coordinate_ascent(model, stream(tmp_path), seed=0, num_draws=200, max_steps=12)
    fresh = found.draws(3, seed=1)
    np.testing.assert_allclose(found.log_density(fresh), expected.log_density(fresh), atol=1e-5)
    np.testing.assert_allclose(
        found.predict(bags).bag_probability,
        coordinate_ascent(model, bags, seed=0, num_draws=200, max_steps=12)
        .predict(bags)
        .bag_probability,
        atol=1e-6,
    )
    with pytest.raises(ValueError, match="was learned from a stream and keeps no bags"):
        _ = found.bags
    found.save(tmp_path / "posterior.nc")
    again = Posterior.load(tmp_path / "posterior.nc")
    np.testing.assert_array_equal(again.approximation.mean, found.approximation.mean)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgpmil", "vwsgp", "dpmil"])
def test_stopped_run_resumes_to_the_same_end(fits, tmp_path, name):
    model, bags, _ = fits[name]
    bags.to_parquet(tmp_path / "bags.parquet")
    given, folder = stream(tmp_path, chunk_instances=100), tmp_path / "steps"
    unbroken = coordinate_ascent(model, given, seed=0, tolerance=1e-4)
    assert unbroken.status.kind == "converged" and len(unbroken.elbo) >= 4
    first = coordinate_ascent(model, given, seed=0, tolerance=1e-4, max_steps=3, checkpoint=folder)
    assert first.status.kind == "max_steps"
    (folder / "block_000003.npz.1.unfinished").write_bytes(b"torn")
    rest = coordinate_ascent(model, given, seed=0, tolerance=1e-4, checkpoint=folder)
    np.testing.assert_array_equal(rest.elbo, unbroken.elbo)
    np.testing.assert_array_equal(rest.approximation.mean, unbroken.approximation.mean)
    # And once more: nothing is left to do.
    again = coordinate_ascent(model, given, seed=0, tolerance=1e-4, checkpoint=folder)
    np.testing.assert_array_equal(again.elbo, unbroken.elbo)
    other = stream(tmp_path, chunk_instances=101)
    with pytest.raises(ValueError, match="is of another run, in its bags"):
        coordinate_ascent(model, other, seed=0, tolerance=1e-4, checkpoint=folder)


@pytest.mark.slow
def test_seconds_of_steps_exclude_compilation(fits, tmp_path):
    model, bags, _ = fits["vwsgp"]
    bags.to_parquet(tmp_path / "bags.parquet")
    given, folder = stream(tmp_path), tmp_path / "steps"
    jax.clear_caches()  # another test may have compiled the same programs
    found = coordinate_ascent(model, given, seed=0, max_steps=3, checkpoint=folder)
    steps = [float(np.load(block)["second 0"]) for block in sorted(folder.glob("*.npz"))]
    assert len(steps) == 3 and min(steps) > 0
    assert sum(steps) < found.seconds and found.compile_seconds > 0


def test_operations_that_a_stream_lacks_are_refused(fits, tmp_path):
    model, bags, _ = fits["vgpmil"]
    bags.to_parquet(tmp_path / "bags.parquet")
    given = stream(tmp_path)
    with pytest.raises(NotImplementedError, match="label_update='mean_field' needs what the last"):
        coordinate_ascent(model, given, seed=0, label_update="mean_field")
    with pytest.raises(NotImplementedError, match="learn_hyperparameters=True on a stream"):
        coordinate_ascent(model, given, seed=0, learn_hyperparameters=True)
    with pytest.raises(ValueError, match="the bags are in memory"):
        coordinate_ascent(model, bags, seed=0, checkpoint=tmp_path / "steps")
    bags.without_labels().to_parquet(tmp_path / "bags.parquet")
    with pytest.raises(ValueError, match="labels"):
        coordinate_ascent(model, stream(tmp_path, bag_label=None), seed=0)
