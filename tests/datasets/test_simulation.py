"""Simulators: labels from a program's prior, at the design given."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate, simulate_instances


def slope_model(bags):
    """A bag is positive with log odds slope · (sum of its first feature)."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    sums = jax.ops.segment_sum(jnp.asarray(bags.instances)[:, 0], bags.bag_index, bags.num_bags)
    logits = numpyro.deterministic("logits", slope * sums)
    numpyro.sample("bag_label", dist.Bernoulli(logits=logits), obs=bags.labels)


def coin(bags):
    with numpyro.plate("bag", bags.num_bags):
        numpyro.sample("bag_label", dist.Bernoulli(0.3), obs=bags.labels)


@pytest.fixture
def design():
    return simulate_instances(30, range(1, 5), 2, seed=0)


def test_simulated_bags_keep_the_design_with_drawn_labels(design):
    bags, sites = simulate(slope_model, design, seed=3)
    assert set(sites) == {"slope", "logits", "bag_label"}
    np.testing.assert_array_equal(bags.instances, design.instances)
    assert bags.names == design.names
    np.testing.assert_array_equal(bags.labels, sites["bag_label"])
    assert bags.labels.dtype == np.int64
    sums = [table[:, 0].sum() for table in design.to_list()]
    np.testing.assert_allclose(sites["logits"], sites["slope"] * sums, rtol=1e-12)  # 64 bit


def test_labels_that_the_design_has_do_not_matter(design):
    bags, sites = simulate(slope_model, design, seed=3)
    again, sites_again = simulate(slope_model, bags, seed=3)
    np.testing.assert_array_equal(again.labels, bags.labels)
    assert sites_again["slope"] == sites["slope"]
    other, _ = simulate(slope_model, bags, seed=4)
    assert (other.labels != bags.labels).any()


def test_a_jax_key_is_a_seed(design):
    by_key, _ = simulate(slope_model, design, seed=jax.random.key(3))
    by_number, _ = simulate(slope_model, design, seed=3)
    np.testing.assert_array_equal(by_key.labels, by_number.labels)


def test_simulated_labels_have_the_prior_frequency():
    # 4,000 coins of probability 0.3: sd of the mean 0.0072; one look, 4.5 sd.
    bags, _ = simulate(coin, simulate_instances(4000, 1, 1, seed=0), seed=1)
    assert abs(bags.labels.mean() - 0.3) < 4.5 * np.sqrt(0.21 / 4000)


def test_a_program_without_bag_labels_is_refused(design):
    def model(bags):
        numpyro.sample("slope", dist.Normal())

    with pytest.raises(ValueError, match=r"has sites \['slope'\]; expected 'bag_label'"):
        simulate(model, design, seed=0)


def test_a_program_with_a_factor_is_refused(design):
    def program(bags):
        numpyro.factor("preference", 1.0)
        numpyro.sample("bag_label", dist.Bernoulli(0.5).expand([bags.num_bags]), obs=bags.labels)

    with pytest.raises(NotImplementedError, match=r"the program has a factor \(preference\)"):
        simulate(program, design, seed=0)


def test_a_program_with_other_than_binary_labels_is_refused(design):
    def model(bags):
        numpyro.sample("bag_label", dist.Delta(2.0))

    with pytest.raises(
        ValueError, match=r"shape \(\) with values \[2.0\]; expected one label 0 or 1"
    ):
        simulate(model, design, seed=0)


def test_instances_are_standard_normal_with_requested_sizes():
    bags = simulate_instances(2000, range(2, 5), 3, seed=0)
    assert set(bags.bag_sizes) == {2, 3, 4}
    assert bags.num_features == 3
    assert bags.labels is None
    # One look each at mean and variance, 4.5 standard errors.
    count = bags.instances.size
    assert abs(bags.instances.mean()) < 4.5 / np.sqrt(count)
    assert abs(bags.instances.var() - 1) < 4.5 * np.sqrt(2 / count)
    assert set(simulate_instances(5, 7, 1, seed=0).bag_sizes) == {7}


def test_the_seed_decides_the_instances():
    one, same, other = (simulate_instances(3, 2, 2, seed=seed).instances for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), "num_bags is 0; expected an integer of at least 1"),
        ((1, 0, 1), "bag_size is 0; expected an integer of at least 1"),
        ((1, range(3), 1), r"bag_size is range\(0, 3\); expected sizes of at least 1"),
        ((1, range(3, 3), 1), r"bag_size is range\(3, 3\); expected sizes of at least 1"),
        ((1, 1, 0), "num_features is 0; expected an integer of at least 1"),
    ],
)
def test_sizes_below_one_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate_instances(*arguments, seed=0)


def test_simulated_targets_replace_old_ones(design):
    def normal_targets(bags):
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample("bag_target", dist.Normal(0.0, 1.0), obs=bags.targets)

    old = design.with_targets(np.full(design.num_bags, 99.0))
    bags, sites = simulate(normal_targets, old, seed=3)
    np.testing.assert_array_equal(bags.targets, sites["bag_target"])
    assert np.abs(bags.targets).max() < 9
    assert bags.labels is None
