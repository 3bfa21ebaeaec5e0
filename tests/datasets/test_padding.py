"""Bags padded to sizes of a grid: how much is added, and that it has no effect."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.datasets.padding import bucket, padded
from milzoo.inference import coordinate_ascent
from milzoo.models import DPMIL, RBF, VGPMIL, VWSGP
from numpyro.infer.util import log_density

POINTS = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, -1.0], [1.0, 1.0]])


@pytest.fixture(scope="module")
def bags():
    """Forty bags of one to five instances, some labels of instances known."""
    model = VGPMIL(RBF(2.0, 1.0), POINTS, mean=-1.0)
    drawn = simulate(model, simulate_instances(40, range(1, 6), 2, seed=1), seed=2)[0]
    of_bag = np.asarray(drawn.labels)[drawn.bag_index]
    return replace(drawn, instance_labels=np.where(of_bag == 1, -1, 0))


MODELS = {
    "vgpmil": lambda bags: VGPMIL(RBF(2.0, 1.0), POINTS, mean=-1.0),
    "vwsgp": lambda bags: VWSGP(RBF(0.5, 1.0), POINTS),
    "dpmil": lambda bags: DPMIL.for_bags(bags, 3),
}
every_model = pytest.mark.parametrize("name", MODELS)


# ------------------------------------------------------------------ the grid


def test_the_grid_adds_at_most_a_quarter():
    numbers = np.arange(1, 30_000)
    sizes = np.array([bucket(int(number)) for number in numbers])
    assert (sizes >= numbers).all() and (sizes <= 1.25 * numbers).all()
    assert (np.diff(sizes) >= 0).all()


def test_the_grid_adds_two_per_cent_to_many_rows():
    numbers = np.unique(np.geomspace(25_000, 10**8, 20_000).astype(int))
    numbers = np.concatenate([numbers, 2 ** np.arange(15, 27), 2 ** np.arange(15, 27) + 1])
    assert max(bucket(int(number)) / number for number in numbers) <= 1.0205


def test_the_grid_has_few_sizes():
    for power in (64, 1024, 4096):
        assert len({bucket(number) for number in range(power, 2 * power)}) <= 9


def test_sizes_of_the_grid_stay_as_they_are():
    for number in (1, 7, 100, 5000, 123_456):
        assert bucket(bucket(number)) == bucket(number)


# ------------------------------------------------------------------ padded bags


@pytest.mark.slow
def test_bags_come_back_in_front(bags):
    whole, number, rows = padded(bags), bags.num_bags, bags.num_instances
    assert whole.num_instances == 256 and whole.num_bags == bucket(number + 1)
    for name in ("instances", "bag_index", "instance_labels"):
        np.testing.assert_array_equal(getattr(whole, name)[:rows], getattr(bags, name))
    np.testing.assert_array_equal(whole.labels[:number], bags.labels)
    assert whole.present[:number].all() and not whole.present[number:].any()
    assert (whole.bag_index[rows:] == whole.num_bags - 1).all()


@pytest.mark.in_ci
def test_small_folds_are_of_one_size(bags):
    sizes = {
        (whole.num_instances, whole.num_bags)
        for whole in (padded(bags.select(np.arange(number))) for number in range(1, 32))
    }
    assert sizes == {(256, 32)}


def test_many_bags_are_of_a_size_of_the_grid():
    many = padded(simulate_instances(300, range(1, 6), 2, seed=1))
    assert (many.num_instances, many.num_bags) == (bucket(900), bucket(301))


def test_a_bag_is_absent_even_where_sizes_fit(bags):
    whole = padded(bags.select(np.arange(32)))
    assert whole.num_bags == bucket(33) and whole.present.sum() == 32


def test_absent_bags_stay_absent(bags):
    left_out = replace(bags, present=np.arange(bags.num_bags) != 3)
    assert padded(left_out).present.sum() == bags.num_bags - 1


# ------------------------------------------------------------------ what they say


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@every_model
def test_padded_bags_have_the_log_density_of_plain_ones(bags, name):
    """Densities of the collapsed program at draws of q."""
    model = MODELS[name](bags)
    fit = coordinate_ascent(model, bags, seed=0, max_steps=5, num_draws=10)
    draws = {site: fit.stored_draws()[site] for site in model.latent_sites}
    whole = padded(bags)

    @jax.jit
    def densities(site):
        given = [bags, whole, model.prepare(bags)]
        return [log_density(model.marginal(), (one,), {}, site)[0] for one in given]

    with jax.enable_x64(True):
        for number in range(3):
            plain, *others = densities({site: drawn[number] for site, drawn in draws.items()})
            assert np.isfinite(plain)
            np.testing.assert_allclose(others, float(plain), rtol=1e-10)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@every_model
def test_an_absent_bag_is_a_bag_left_out(bags, name):
    """The collapsed program has p(T | u) of the other bags and the same prior."""
    model = MODELS[name](bags)
    fit = coordinate_ascent(model, bags, seed=0, max_steps=5, num_draws=10)
    present = np.arange(bags.num_bags) % 3 != 0
    with jax.enable_x64(True):
        site = {site: jnp.asarray(fit.stored_draws()[site][0]) for site in model.latent_sites}
        found, expected = (
            log_density(model.marginal(), (given,), {}, site)[0]
            for given in (replace(bags, present=present), bags.select(present))
        )
    np.testing.assert_allclose(found, float(expected), rtol=1e-10)


@pytest.mark.slow
@every_model
def test_bags_and_padded_bags_have_one_posterior(bags, name, monkeypatch):
    """Closed-form engines pad; without padding they find the same posterior."""
    from milzoo.inference.closed_form import dpmil, sparse_gp

    model = MODELS[name](bags)
    found = coordinate_ascent(model, bags, seed=0, max_steps=10, tolerance=0.0, num_draws=10)
    for module in (sparse_gp, dpmil):
        monkeypatch.setattr(module, "padded", lambda bags: bags)
    plain = coordinate_ascent(model, bags, seed=0, max_steps=10, tolerance=0.0, num_draws=10)
    np.testing.assert_allclose(found.elbo, plain.elbo, rtol=1e-10)
    np.testing.assert_allclose(found.approximation.mean, plain.approximation.mean, atol=1e-9)


@pytest.mark.in_ci
def test_instances_that_fill_set_no_quadrature(bags):
    """One absent bag holds them all: its sum would vary as much as that of 135 instances."""
    model = MODELS["vwsgp"](bags)
    rules = [given.rule for given in (model.prepare(bags), model.unpadded(bags))]
    assert rules[0].nodes.shape == rules[1].nodes.shape
