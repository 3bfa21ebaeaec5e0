"""Natural gradients by batches: their direction, where they lead, and what is said of it."""

from dataclasses import replace
from itertools import batched

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances, stream
from milzoo.inference import coordinate_ascent, natural_gradient
from milzoo.inference.closed_form import Options, closed_form
from milzoo.inference.closed_form.natural_gradient import _judged, _lacking
from milzoo.inference.closed_form.sparse_gp import BagForm, InducingFactor
from milzoo.models import DPMIL, RBF, VGPMIL, VWSGP, Gaussian
from milzoo.models.numerics.products import inverse_transposed

POINTS = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, -1.0], [1.0, 1.0]])


def gaussian(noise: float) -> dict:
    """Fields of a `VWSGP` of targets."""
    return {"likelihood": Gaussian(noise)}


@pytest.fixture(scope="module")
def design():
    return simulate_instances(120, 4, 2, seed=1)


@pytest.fixture(scope="module")
def cases(design):
    """By name: model, and bags drawn from it."""
    models = {
        "vgpmil": VGPMIL(RBF(1.0, 1.0), POINTS, mean=-0.5),
        "vwsgp": VWSGP(RBF(0.5, 1.0), POINTS),
        "gaussian": VWSGP(RBF(0.5, 1.0), POINTS, **gaussian(0.3)),
    }
    drawn = {name: (model, simulate(model, design, seed=2)[0]) for name, model in models.items()}
    apart = with_a_witness_apart(design)
    mixtures = {"dpmil": DPMIL.for_bags(apart, 2), "gaussians": DPMIL.for_bags(apart, 1)}
    return drawn | {name: (model, apart) for name, model in mixtures.items()}


def with_a_witness_apart(design):
    """Every second bag positive, its first instance from a cluster of its own."""
    labels = np.arange(design.num_bags) % 2
    is_witness = (labels[design.bag_index] == 1) & (np.arange(design.num_instances) % 4 == 0)
    instances = np.asarray(design.instances) + 5.0 * is_witness[:, None]
    return replace(design, instances=instances, labels=labels)


@pytest.fixture(scope="module")
def slow(design):
    """VGPMIL that coordinate ascent takes hundreds of steps for."""
    model = VGPMIL(RBF(3.0, 1.0), POINTS, mean=-1.0)
    return model, simulate(model, design, seed=2)[0]


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", ["vgpmil", "vwsgp"])
def test_a_step_follows_the_natural_gradient_of_the_bound(cases, closed_form_start, name):
    """Its gradient in the mean parameters E ε, E εεᵀ is what statistics add to the natural ones.

    The bound with the other factors at their optimum is differentiated by JAX.
    """
    model, bags = cases[name]

    def factor(mean, precision):
        root = jnp.linalg.cholesky(precision)
        return InducingFactor(mean, root, inverse_transposed(root))

    @jax.jit
    def both(form, prepared, mean, precision):
        def bound(first, second):
            covariance = second - jnp.outer(first, first)
            q = factor(first, jnp.linalg.inv((covariance + covariance.T) / 2))
            return form.elbo(q, form.e_step(prepared, q, None)[0])

        second = jnp.linalg.inv(precision) + jnp.outer(mean, mean)
        found = jax.grad(bound, argnums=(0, 1))(mean, second)
        return found, form.e_step(prepared, factor(mean, precision), None)[0]

    random = np.random.default_rng(0)
    mean, root = random.normal(size=4), 0.3 * random.normal(size=(4, 4)) + np.eye(4)
    precision = root @ root.T
    with jax.enable_x64(True):
        begun = closed_form_start(model, bags)
        found = both(begun.form, begun.prepared, mean, precision)
        gradient, statistics = jax.tree.map(np.asarray, found)
    # Natural parameters S⁻¹m and −½S⁻¹, where the statistics lead less where q is.
    assert np.abs(gradient[0]).max() > 1
    expected = statistics.linear_term - precision @ mean
    np.testing.assert_allclose(gradient[0], expected, rtol=1e-6, atol=1e-8)
    expected = -0.5 * (np.eye(4) + statistics.gram - precision)
    np.testing.assert_allclose((gradient[1] + gradient[1].T) / 2, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_running_statistics_have_the_order_of_their_components(cases):
    """Else statistics of one order of the components would be added to those of another."""
    model, _ = cases["dpmil"]
    form = closed_form(replace(model, max_components=5), Options(num_starts=3))
    random = np.random.default_rng(0)
    nothing = form.no_statistics()
    occupancy = random.uniform(1, 50, nothing.sufficient.occupancy.shape)
    statistics = nothing._replace(sufficient=nothing.sufficient._replace(occupancy=occupancy))
    with jax.enable_x64(True):
        ordered = form.in_order(jax.tree.map(jnp.asarray, statistics))
        gaussians = form.m_step(ordered).gaussians
        found = np.asarray(ordered.sufficient.occupancy)
        np.testing.assert_allclose(np.asarray(gaussians.strength), model.mean_strength + found)
    np.testing.assert_array_equal(np.sort(found), np.sort(occupancy))
    assert (found != occupancy).any()


@pytest.mark.slow
def test_a_bag_above_the_batch_size_counts_once(cases):
    """Steps of size 1/(t + 1) make the mean over all bags, each a batch: the exact posterior."""
    model, bags = cases["gaussian"]
    exact = coordinate_ascent(model, bags, seed=0)
    found = natural_gradient(
        model, bags, seed=0, batch_instances=1, max_steps=119, delay=1.0, forgetting=1.0
    )
    np.testing.assert_allclose(found.elbo[-3:], exact.elbo[-1], rtol=1e-10)


@pytest.mark.slow
def test_one_pass_over_targets_gives_the_exact_posterior(cases):
    """What the bags add does not depend on q: the mean over equal batches is what all add."""
    model, bags = cases["gaussian"]
    exact = coordinate_ascent(model, bags, seed=0)
    # The first q is of the first batch; 11 steps have the others of twelve, in any order.
    found = natural_gradient(
        model, bags, seed=0, batch_instances=40, max_steps=11, delay=1.0, forgetting=1.0
    )
    # The bound before a step over all bags is log p(Y) already, to which nothing can be added.
    np.testing.assert_allclose(found.elbo[-3:], exact.elbo[-1], rtol=1e-10)
    assert found.status.kind == "converged"
    fewer = natural_gradient(
        model, bags, seed=0, batch_instances=40, max_steps=10, delay=1.0, forgetting=1.0
    )
    assert fewer.elbo[-3] < exact.elbo[-1] - 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgpmil", "vwsgp", "gaussians"])
@pytest.mark.parametrize("way", ["memory", "stream"])
def test_batches_lead_to_where_coordinate_ascent_ends(cases, tmp_path, name, way):
    model, bags = cases[name]
    given = bags
    if way == "stream":
        bags.to_parquet(tmp_path / "bags.parquet")
        given = stream(tmp_path, chunk_instances=200)
    few = {"num_starts": 1} if name == "gaussians" else {}
    expected = coordinate_ascent(model, bags, seed=0, **few)
    found = natural_gradient(model, given, seed=0, batch_instances=120, max_steps=300, **few)
    assert found.status.kind == "converged", found.status
    assert found.engine == "natural_gradient" and len(found.elbo) == 303
    assert expected.elbo[-1] - 0.5 < found.elbo[-1] < expected.elbo[-1] + 1e-6
    # Estimates by a quarter of the bags scatter about the bound, on both sides.
    late = found.elbo[100:-3]
    error = late.std(ddof=1) / np.sqrt(len(late) / 4)  # those of one pass hang together
    assert abs(late.mean() - found.elbo[-1]) < 4 * error + 1
    assert (late > found.elbo[-1]).any() and (late < found.elbo[-1]).any()


@pytest.mark.slow
def test_batches_are_weighted_by_their_size(cases, tmp_path):
    """Chunks of 100, 100, … and 80: steps of 1/t by their sizes lead to the sums over all."""
    model, bags = cases["gaussian"]
    bags.to_parquet(tmp_path / "bags.parquet")
    given = stream(tmp_path, chunk_instances=100, bag_label=None)
    exact = coordinate_ascent(model, bags, seed=0).elbo[-1]
    passes = [10, 40]
    lacking = [
        exact
        - natural_gradient(
            model, given, seed=0, batch_instances=100, max_steps=5 * number - 1, forgetting=1.0
        ).elbo[-3]
        for number in passes
    ]
    # An error that falls as 1/t lowers the bound by its square; one that stays would not fall.
    assert 0 < lacking[1] < lacking[0] / 4


@pytest.mark.slow
def test_small_gains_of_a_slow_ascent_are_no_convergence(slow):
    model, bags = slow
    exact = coordinate_ascent(model, bags, seed=0)
    assert len(exact.elbo) > 200
    found = natural_gradient(model, bags, seed=0, batch_instances=120, max_steps=300)
    first, second = np.diff(found.elbo[-3:])
    assert 0 < second < first < 0.5 and found.status.kind == "max_steps"
    lacking = float(found.status.sentence.split()[-1])
    assert lacking == pytest.approx(second**2 / (first - second), rel=0.01)
    assert exact.elbo[-1] > found.elbo[-1] + 5


@pytest.mark.parametrize(
    ("bounds", "lacking"),
    [
        ([-10.0, -6.0, -4.0], 2.0),  # 4, 2, then 1 + ½ + …
        ([-10.0, -9.9, -9.8], np.inf),
        ([-10.0, -9.9, -9.7], np.inf),
        ([-10.0, -10.0, -10.0], 0.0),
        ([-1e6, -1e6, -1e6 + 1e-5], 0.0),  # rounding
    ],
)
def test_missing_gain_is_the_rest_of_a_geometric_series(bounds, lacking):
    assert _lacking(np.array(bounds), 1e-9) == pytest.approx(lacking, rel=1e-9)


def test_a_bound_that_is_none_is_a_failure():
    assert _judged(np.array([-3.0, -2.0, np.nan]), 7, 1e-9).kind == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vwsgp", "dpmil"])
def test_batches_on_two_devices_are_twice_as_large(cases, name):
    model, bags = cases[name]
    one, two = (
        natural_gradient(model, bags, seed=0, max_steps=7, batch_instances=120 // number, mesh=mesh)
        for number, mesh in ((1, None), (2, jax.make_mesh((2,), ("bags",))))
    )
    np.testing.assert_allclose(two.elbo, one.elbo, rtol=1e-10)
    np.testing.assert_allclose(two.approximation.mean, one.approximation.mean, atol=1e-8)


@pytest.mark.in_ci
def test_each_pass_takes_all_bags_in_a_new_order(cases, monkeypatch):
    model, bags = cases["vwsgp"]
    checked = []
    monkeypatch.setattr(BagForm, "check", lambda form, batch: checked.append(batch.names))
    natural_gradient(model, bags, seed=0, batch_instances=160, max_steps=8)
    # All bags first; then three batches a pass, and behind them passes over all bags.
    passes = [sum(batches, ()) for batches in batched(checked[1:10], 3)]
    assert all(sorted(names) == sorted(bags.names) for names in passes)
    assert len({*passes, bags.names}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vwsgp", "dpmil"])
def test_stopped_run_resumes_to_the_same_end(cases, tmp_path, name):
    model, bags = cases[name]
    bags.to_parquet(tmp_path / "bags.parquet")
    given, options = stream(tmp_path), {"seed": 0, "batch_instances": 100}
    unbroken = natural_gradient(model, given, max_steps=12, **options)
    folder = tmp_path / "steps"
    natural_gradient(model, given, max_steps=5, checkpoint=folder, **options)
    rest = natural_gradient(model, given, max_steps=12, checkpoint=folder, **options)
    np.testing.assert_array_equal(rest.elbo, unbroken.elbo)
    np.testing.assert_array_equal(rest.approximation.mean, unbroken.approximation.mean)
    with pytest.raises(ValueError, match="is of another run, in its delay"):
        natural_gradient(model, given, max_steps=12, checkpoint=folder, delay=3.0, **options)


@pytest.mark.slow
def test_seconds_of_steps_exclude_compilation(cases, tmp_path):
    model, bags = cases["vwsgp"]
    found = natural_gradient(model, bags, seed=0, max_steps=3, checkpoint=tmp_path / "steps")
    steps = [float(np.load(block)["second 0"]) for block in (tmp_path / "steps").glob("*.npz")]
    assert len(steps) == 3 and min(steps) > 0
    assert sum(steps) < found.seconds and found.compile_seconds > 0


@pytest.mark.in_ci
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forgetting": 0.5}, "forgetting is 0.5; expected a number above 0.5"),
        ({"forgetting": 1.1}, "forgetting is 1.1"),
        ({"delay": -1.0}, "delay is -1.0; expected a finite number of at least 0"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"batch_instances": 0}, "batch_instances is 0"),
        ({"num_starts": 3}, "num_starts is 3, but the closed form of VGPMIL has one start"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
    ],
)
def test_bad_options_are_refused(cases, without_type_checks, options, message):
    model, bags = cases["vgpmil"]
    with pytest.raises(ValueError, match=message):
        natural_gradient(model, bags, seed=0, **options)
