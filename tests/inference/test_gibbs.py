"""Gibbs sampling of VGPMIL: each conditional, and all of them together.

Statistical tests are seeded and look at fewer than 1,000 numbers with |z| ≤ 5.5 Monte-Carlo
standard errors: a false alarm in fewer than 4 of 10⁵ runs of this file.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.inference import gibbs, nuts
from milzoo.inference.gibbs.vgpmil import VGPMILGibbs
from milzoo.models import RBF, GammaScaleMixture, ScaleMixture

LARGEST_Z = 5.5
EVERYTHING = ("inducing_value", "latent", "instance_label")


@pytest.fixture(scope="module")
def posterior(small_problem):
    return gibbs(*small_problem, seed=1, num_samples=3000, keep=EVERYTHING)


def sites(posterior, name="inducing_value"):
    return posterior.tree["posterior"][name].to_numpy()


# ------------------------------------------------------------------ single conditionals


def test_gaussian_conditionals_are_those_of_dense_algebra(small_problem):
    # (u, f) | ω, y is Gaussian: prior N(0, K) of FITC, factors exp(κf − ωf²/2).
    model, bags = small_problem
    random = np.random.default_rng(0)
    label = random.integers(0, 2, size=bags.num_instances)
    omega = random.gamma(2.0, 0.3, size=bags.num_instances)
    mean, covariance = dense_posterior(model, bags, label, omega)
    with jax.enable_x64(True):
        sweep = VGPMILGibbs.for_model(model, bags)

        def draw(key):
            whitened_key, latent_key = jax.random.split(key)
            whitened = sweep.draw_whitened(whitened_key, jnp.asarray(label), jnp.asarray(omega))
            latent = sweep.draw_latent(latent_key, whitened, jnp.asarray(label), jnp.asarray(omega))
            return jnp.concatenate([sweep.conditional.cholesky @ whitened, latent])

        draws = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), 40_000)))
    mean_z = (draws.mean(axis=0) - mean) / np.sqrt(np.diag(covariance) / len(draws))
    assert np.abs(mean_z).max() <= LARGEST_Z
    variance = np.diag(covariance)
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / len(draws))
    covariance_z = (np.cov(draws.T) - covariance) / error
    assert np.abs(covariance_z).max() <= LARGEST_Z


def dense_posterior(model, bags, label, omega):
    """Mean and covariance of (u, f) given ω and y, by inverting everything."""
    points, count = model.inducing_points, len(model.inducing_points)
    within = covariance_matrix(model, points, points)
    within += model.jitter * model.kernel.variance * np.eye(count)
    across = covariance_matrix(model, bags.instances, points)
    weight = across @ np.linalg.inv(within)  # A
    residual = model.kernel.variance - np.sum(weight * across, axis=1)  # k̃
    prior = np.block([[within, across.T], [across, weight @ across.T + np.diag(residual)]])
    observed = np.concatenate([np.zeros(count), omega])
    covariance = np.linalg.inv(np.linalg.inv(prior) + np.diag(observed))
    prior_mean = np.concatenate([np.zeros(count), np.full(len(omega), model.mean)])
    linear = np.concatenate([np.zeros(count), label - 0.5])
    return covariance @ (np.linalg.solve(prior, prior_mean) + linear), covariance


def covariance_matrix(model, left, right):
    distance = ((left[:, None] - right[None]) ** 2).sum(axis=-1)
    return model.kernel.variance * np.exp(-0.5 * distance / model.kernel.length_scale**2)


def test_a_chain_starts_from_the_prior(small_problem):
    model, bags = small_problem
    with jax.enable_x64(True):
        sweep = VGPMILGibbs.for_model(model, bags)
        keys = jax.random.split(jax.random.key(2), 20_000)
        sites = jax.jit(jax.vmap(lambda key: sweep.sites(sweep.init(key))))(keys)
    for values, mean in ((sites["inducing_value"], 0.0), (sites["latent"], model.mean)):
        deviation = np.sqrt(model.kernel.variance)
        z = (np.asarray(values).mean(axis=0) - mean) / (deviation / np.sqrt(20_000))
        assert np.abs(z).max() <= LARGEST_Z
        z = (np.asarray(values).std(axis=0) / deviation - 1) * np.sqrt(2 * 20_000)
        assert np.abs(z).max() <= LARGEST_Z


# ------------------------------------------------------------------ the right posterior


@pytest.mark.slow
def test_one_inducing_value_has_the_moments_of_quadrature(
    one_inducing_point, exact_posterior, moments
):
    ours = moments(sites(gibbs(*one_inducing_point, seed=3, num_samples=3000)))
    assert ours.largest_z(exact_posterior.moments) <= LARGEST_Z
    assert ours.largest_z(np.array([[0.0], [exact_posterior.scale]])) > 3 * LARGEST_Z


@pytest.mark.slow
def test_labels_that_say_nothing_leave_the_prior(small_problem, moments):
    model, bags = small_problem
    deaf = replace(model, sharpness=1.0)
    posterior = gibbs(deaf, bags, seed=4, num_samples=4000, keep=("inducing_value", "latent"))
    deviation = np.sqrt(model.kernel.variance * (1 + model.jitter))
    prior = np.array([[0.0] * 4, [deviation] * 4])
    assert moments(sites(posterior)).largest_z(prior) <= LARGEST_Z
    prior = np.tile([[model.mean], [np.sqrt(model.kernel.variance)]], bags.num_instances)
    assert moments(sites(posterior, "latent")).largest_z(prior) <= LARGEST_Z


@pytest.mark.slow
def test_evidence_and_labels_are_those_drawn_back_from_nuts(small_problem, posterior, moments):
    model, bags = small_problem
    other = nuts(model, bags, seed=1)
    assert moments(sites(posterior)).largest_z(moments(sites(other))) <= LARGEST_Z
    completed = model.complete(other.stored_draws(), bags, seed=6)
    for name in ("latent", "instance_label"):
        drawn_back = completed[name].reshape(4, 1000, -1)
        assert moments(sites(posterior, name)).largest_z(moments(drawn_back)) <= LARGEST_Z


@pytest.mark.slow
def test_gamma_scale_mixture_agrees_with_nuts_on_both_programs(small_problem, moments):
    # With v = 0.4 and four bags the prior holds: this posterior has one mode, near the data. (At
    # v = ½ and M = 50 on digits it runs away to |f| of hundreds, and no sampler mixes.)
    model, bags = small_problem
    tame = replace(model, kernel=RBF(0.4, 1.5), scale_mixture=GammaScaleMixture(1.0, 2.5))
    few = bags.select(np.arange(4))
    assert set(few.labels) == {0, 1}
    ours = gibbs(tame, few, seed=7, num_samples=6000, keep=("inducing_value", "latent"))
    full = nuts(tame, few, seed=8, program="full")
    for name in ("inducing_value", "latent"):
        assert moments(sites(ours, name)).largest_z(moments(sites(full, name))) <= LARGEST_Z
    marginal = nuts(tame, few, seed=9)
    assert moments(sites(ours)).largest_z(moments(sites(marginal))) <= LARGEST_Z


# ------------------------------------------------------------------ the machinery


@pytest.mark.slow
def test_kept_sites_are_stored_and_obey_negative_bags(posterior, small_problem):
    _, bags = small_problem
    tree = posterior.tree["posterior"]
    assert set(tree.data_vars) == set(EVERYTHING)
    assert tree["latent"].dims == tree["instance_label"].dims == ("chain", "draw", "instance")
    assert dict(tree.sizes) == {
        "chain": 4,
        "draw": 3000,
        "inducing_point": 4,
        "instance": bags.num_instances,
    }
    assert set(np.unique(tree["instance_label"])) == {0, 1}
    assert "sample_stats" not in posterior.tree
    # The maximum of a bag contradicts its label in few sweeps: the sharpness is 100.
    largest = np.maximum.reduceat(sites(posterior, "instance_label"), bags.starts, axis=2)
    assert (largest == bags.labels).mean() > 0.9


@pytest.mark.slow
def test_same_seed_gives_the_same_draws_in_64_bit(small_problem, posterior):
    """They do not depend on the number of draws, and no global flag changes."""
    same, other = (
        sites(gibbs(*small_problem, seed=s, num_samples=130, keep=EVERYTHING)) for s in (1, 2)
    )
    np.testing.assert_array_equal(same, sites(posterior)[:, :130])
    assert (same != other).any(axis=2).all()
    assert same.dtype == np.float64
    assert not jax.config.jax_enable_x64


# ------------------------------------------------------------------ refusals


def test_priors_are_refused_by_name(small_problem):
    model, bags = small_problem
    kernel = replace(model.kernel, variance=dist.LogNormal(0.0, 1.0))
    open_model = replace(model, kernel=kernel, mean=dist.Normal(0.0, 1.0))
    message = r"variance, mean of the model have priors.*give numbers, or sample with nuts"
    with pytest.raises(ValueError, match=message):
        gibbs(open_model, bags, seed=0)


def test_unknown_mixing_density_is_refused(small_problem):
    model, bags = small_problem
    custom = ScaleMixture.from_log_density(lambda f: -jnp.sqrt(1 + f**2))
    with pytest.raises(
        NotImplementedError, match=r"not its mixing dist.*use PolyaGammaScaleMixture"
    ):
        gibbs(replace(model, scale_mixture=custom), bags, seed=0)


@pytest.mark.slow
def test_one_name_may_be_kept_without_a_tuple(small_problem):
    kept = gibbs(*small_problem, seed=0, num_warmup=0, num_samples=5, keep="latent")
    assert set(kept.tree["posterior"].data_vars) == {"inducing_value", "latent"}


def test_bags_without_labels_are_refused(small_problem):
    model, bags = small_problem
    with pytest.raises(ValueError, match="bags have no labels; gibbs needs one for each bag"):
        gibbs(model, replace(bags, labels=None), seed=0)


@pytest.mark.in_ci
@pytest.mark.parametrize(
    ("name", "value", "least"), [("num_chains", 0, 1), ("num_samples", 0, 1), ("num_warmup", -1, 0)]
)
def test_a_count_out_of_range_is_refused_by_name(small_problem, name, value, least):
    message = f"{name} is {value}; expected an integer of at least {least}"
    with pytest.raises(ValueError, match=message):
        gibbs(*small_problem, seed=0, **{name: value})
