"""NUTS on the marginal and on the full program.

Statistical tests are seeded and look at most at 100 numbers with |z| ≤ 5.5 Monte-Carlo standard
errors: fewer than one false alarm in 10⁵ runs of this file.
"""

import re
from dataclasses import replace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.inference import Posterior, coordinate_ascent, nuts
from milzoo.inference.gaussian import whitened_draws, whitened_program
from milzoo.inference.nuts import NUTSChain, _dispersed
from milzoo.models import RBF

LARGEST_Z = 5.5


@pytest.fixture(scope="module")
def marginal(small_problem) -> Posterior:
    return nuts(*small_problem, seed=1)


@pytest.fixture(scope="module")
def full(small_problem) -> Posterior:
    return nuts(*small_problem, seed=2, program="full")


def sites(posterior, name="inducing_value"):
    return posterior.tree["posterior"][name].to_numpy()


# ------------------------------------------------------------------ the right posterior


@pytest.mark.slow
def test_marginal_and_full_program_have_the_same_posterior(marginal, full, moments):
    assert moments(sites(marginal)).largest_z(moments(sites(full))) <= LARGEST_Z


@pytest.mark.slow
def test_latent_values_drawn_back_match_the_full_program(marginal, full, small_problem, moments):
    model, bags = small_problem
    completed = model.complete(marginal.stored_draws(), bags, seed=3)["latent"]
    completed = completed.reshape(*sites(marginal).shape[:2], -1)
    assert moments(completed).largest_z(moments(sites(full, "latent"))) <= LARGEST_Z


@pytest.mark.slow
def test_one_inducing_value_has_the_moments_of_quadrature(
    one_inducing_point, exact_posterior, moments
):
    posterior = nuts(*one_inducing_point, seed=4)
    assert moments(sites(posterior)).largest_z(exact_posterior.moments) <= LARGEST_Z
    # The prior is another distribution: the labels say enough for the test to mean something.
    prior = np.array([[0.0], [exact_posterior.scale]])
    assert moments(sites(posterior)).largest_z(prior) > 3 * LARGEST_Z


@pytest.mark.slow
def test_labels_that_say_nothing_leave_the_prior(small_problem, moments):
    model, bags = small_problem
    deaf = replace(model, sharpness=1.0)
    posterior = nuts(deaf, bags, seed=5, program="full")
    deviation = np.sqrt(model.kernel.variance * (1 + model.jitter))
    prior = np.array([[0.0] * 4, [deviation] * 4])
    assert moments(sites(posterior)).largest_z(prior) <= LARGEST_Z
    prior = np.tile([[model.mean], [np.sqrt(model.kernel.variance)]], bags.num_instances)
    assert moments(sites(posterior, "latent")).largest_z(prior) <= LARGEST_Z


@pytest.mark.slow
def test_priors_on_hyperparameters_agree_with_importance_sampling(
    one_inducing_point, log_likelihood_of_one, moments
):
    model, bags = one_inducing_point
    priors = {
        "variance": dist.LogNormal(0.8, 0.6),
        "length_scale": dist.LogNormal(0.5, 0.4),
        "mean": dist.Normal(-0.5, 1.0),
    }
    kernel = RBF(priors["variance"], priors["length_scale"])
    open_model = replace(model, kernel=kernel, mean=priors["mean"])
    names = ("inducing_value", *priors)
    posterior = nuts(open_model, bags, seed=6, num_samples=2000)
    sampled = np.concatenate([sites(posterior, n).reshape(4, 2000, 1) for n in names], axis=2)

    random = np.random.default_rng(7)
    variance = random.lognormal(0.8, 0.6, size=60_000)
    length_scale = random.lognormal(0.5, 0.4, size=60_000)
    mean = random.normal(-0.5, 1.0, size=60_000)
    inducing_value = np.sqrt(variance) * random.normal(size=60_000)
    from_prior = np.stack([inducing_value, variance, length_scale, mean], axis=1)
    log_weight = log_likelihood_of_one(open_model, bags, *from_prior.T)
    values, errors = weighted_moments(from_prior, np.exp(log_weight - log_weight.max()))
    ours = moments(sampled)
    z = (ours.values - values) / np.hypot(ours.errors, errors)
    assert np.abs(z).max() <= LARGEST_Z
    # The labels say something: draws from the prior would not pass.
    unweighted, _ = weighted_moments(from_prior, np.ones(60_000))
    assert ours.largest_z(unweighted) > 3 * LARGEST_Z


def weighted_moments(draws, weights):
    """Self-normalised importance sampling: mean and sd, with errors by the delta method."""
    weights = weights / weights.sum()
    mean = weights @ draws
    square = (draws - mean) ** 2
    variance = weights @ square
    mean_error = np.sqrt(weights**2 @ square)
    variance_error = np.sqrt(weights**2 @ (square - variance) ** 2)
    deviation = np.sqrt(variance)
    return np.stack([mean, deviation]), np.stack([mean_error, variance_error / (2 * deviation)])


# ------------------------------------------------------------------ the machinery


@pytest.mark.in_ci
def test_tree_has_what_arviz_looks_for(full, small_problem):
    model, bags = small_problem
    tree = full.tree
    assert set(tree.children) == {*("posterior", "sample_stats", "observed_data", "constant_data")}
    assert set(tree["posterior"].data_vars) == {"inducing_value", "latent"}
    assert tree["posterior"]["inducing_value"].dims == ("chain", "draw", "inducing_point")
    assert tree["posterior"]["latent"].dims == ("chain", "draw", "instance")
    np.testing.assert_array_equal(tree["observed_data"]["bag_label"], bags.labels)
    np.testing.assert_array_equal(tree["constant_data"]["instances"], bags.instances)
    assert tree["constant_data"]["bag_index"].dims == ("instance",)
    assert set(tree["sample_stats"].data_vars) == {
        *("diverging", "energy", "acceptance_rate", "n_steps", "step_size")
    }
    assert dict(tree["sample_stats"].sizes) == {"chain": 4, "draw": 1000}
    assert len(model.inducing_points) == tree["posterior"].sizes["inducing_point"]


@pytest.mark.slow
def test_warm_up_tunes_to_the_target_and_nothing_diverges(marginal, small_problem):
    statistics = marginal.tree["sample_stats"]
    assert not statistics["diverging"].any()
    assert 0.7 < float(statistics["acceptance_rate"].mean()) < 0.97
    # After warm-up the step size of a chain stays as it is.
    assert (statistics["step_size"] == statistics["step_size"][:, :1]).all()
    short = {"num_warmup": 200, "num_samples": 20, "num_chains": 1}
    careful = nuts(*small_problem, seed=1, target_accept=0.97, **short)
    step_size = float(careful.tree["sample_stats"]["step_size"].mean())
    assert step_size < 0.8 * float(statistics["step_size"].mean())


@pytest.mark.slow
def test_chains_are_the_same_on_one_device_and_two(small_problem, marginal, monkeypatch):
    """They differ from each other."""
    assert jax.local_device_count() == 2
    first_device = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: first_device)
    on_one = sites(nuts(*small_problem, seed=1, num_samples=5))
    on_two = sites(marginal)[:, :5]
    np.testing.assert_allclose(on_one, on_two, rtol=1e-6)
    assert len(np.unique(on_two[:, 0], axis=0)) == 4


@pytest.mark.slow
def test_chains_that_the_devices_do_not_divide(small_problem):
    posterior = nuts(*small_problem, seed=8, num_warmup=10, num_samples=5, num_chains=3)
    assert sites(posterior).shape == (3, 5, 4)
    assert len(np.unique(sites(posterior)[:, 0], axis=0)) == 3


@pytest.mark.slow
def test_same_seed_gives_the_same_draws_in_64_bit(small_problem, marginal):
    """They do not depend on the number of draws, and no global flag changes."""
    # 130 draws are a block of 100 and a part of one; the fixture's 1000 are ten blocks.
    same, other = (sites(nuts(*small_problem, seed=s, num_samples=130)) for s in (1, 2))
    np.testing.assert_array_equal(same, sites(marginal)[:, :130])
    assert (same != other).any(axis=2).all()
    assert same.dtype == np.float64
    assert not jax.config.jax_enable_x64


@pytest.mark.slow
def test_seconds_of_compilation_warmup_and_sampling_are_separate(marginal):
    assert marginal.compile_seconds > 0
    assert 0 < marginal.sampling_seconds < marginal.seconds


# ------------------------------------------------------------------ refusals


def test_unknown_program_is_refused(small_problem, without_type_checks):
    with pytest.raises(ValueError, match="program is 'joint'; expected one of marginal, full"):
        nuts(*small_problem, seed=0, program="joint")


@pytest.mark.parametrize(
    ("name", "value", "least"), [("num_chains", 0, 1), ("num_samples", 0, 1), ("num_warmup", -1, 0)]
)
def test_a_count_out_of_range_is_refused_by_name(small_problem, name, value, least):
    message = f"{name} is {value}; expected an integer of at least {least}"
    with pytest.raises(ValueError, match=message):
        nuts(*small_problem, seed=0, **{name: value})


def test_bad_acceptance_probabilities_are_refused(small_problem):
    with pytest.raises(ValueError, match=r"target_accept is 1\.5; expected a number between 0 and"):
        nuts(*small_problem, seed=0, target_accept=1.5)


@pytest.mark.slow
def test_status_says_whether_the_chains_agree(small_problem, marginal):
    assert marginal.status.kind == "converged"
    cut = nuts(*small_problem, seed=0, num_warmup=0, num_samples=10)
    assert cut.status.kind == "max_steps"
    assert re.search(r"4 × 10 draws after warm-up, worst R̂ \d", cut.status.sentence)


def test_bags_without_labels_are_refused(small_problem):
    model, bags = small_problem
    with pytest.raises(ValueError, match="bags have no labels; nuts needs one for each bag"):
        nuts(model, replace(bags, labels=None), seed=0)


def test_a_seed_of_another_type_is_refused(small_problem, without_type_checks):
    with pytest.raises(TypeError, match=r"seed is 'x'; expected an int or a JAX key"):
        nuts(*small_problem, seed="x")


def test_bags_of_another_width_are_refused(small_problem):
    model, bags = small_problem
    narrow = replace(bags, instances=bags.instances[:, :1])
    with pytest.raises(ValueError, match=r"bags have 1 features.*this model have 2"):
        nuts(model, narrow, seed=0)


# ------------------------------------------------------------------ a warm start


@pytest.fixture(scope="module")
def ascended(small_problem) -> Posterior:
    return coordinate_ascent(*small_problem, seed=0)


def test_starts_are_twice_as_wide_as_the_posterior(small_problem, ascended):
    model, bags = small_problem
    with jax.enable_x64(True):
        target = whitened_program(model, bags)
        q = whitened_draws(target, ascended.draws(2000, seed=5))
    starts = np.concatenate(list(_dispersed(ascended, model, bags, "marginal").values()), axis=-1)
    assert starts.shape == (100, target.size)
    # 4.9 standard errors of 100 draws.
    assert (np.abs(starts.mean(axis=0) - q.mean(axis=0)) < 4.9 * q.std(axis=0) / 10).all()
    assert starts.std(axis=0) / q.std(axis=0) == pytest.approx(2.0, rel=4.9 / 200**0.5)


@pytest.mark.in_ci
def test_chains_begin_at_the_starts(small_problem, ascended):
    starts = _dispersed(ascended, *small_problem, "marginal")
    with jax.enable_x64(True):
        chain = replace(NUTSChain.for_model(*small_problem, num_warmup=10), starts=starts)
        begun = jax.jit(jax.vmap(chain.init))(jax.random.split(jax.random.key(0), 8))
    [(name, site)] = begun.trajectory.z.items()
    distance = np.abs(np.asarray(site)[:, None] - starts[name]).max(axis=-1).min(axis=1)
    assert (distance < 1e-12).all()
    assert len(np.unique(np.asarray(site), axis=0)) > 1


@pytest.mark.slow
def test_a_warm_start_has_the_same_posterior(small_problem, ascended, marginal, moments):
    warm = nuts(*small_problem, seed=3, num_warmup=150, start=ascended)
    assert warm.status.kind == "converged"
    assert moments(sites(warm)).largest_z(moments(sites(marginal))) <= LARGEST_Z


@pytest.mark.in_ci
def test_a_start_is_part_of_a_run(small_problem, ascended, tmp_path):
    length = {"num_warmup": 0, "num_samples": 4, "num_chains": 2}
    cold = nuts(*small_problem, seed=1, checkpoint=tmp_path / "chains", **length)
    with pytest.raises(ValueError, match="is of another run, in its starts"):
        nuts(*small_problem, seed=1, start=ascended, checkpoint=tmp_path / "chains", **length)
    warm = nuts(*small_problem, seed=1, start=ascended, **length)
    found = [fit.tree["posterior"]["inducing_value"].to_numpy() for fit in (warm, cold)]
    assert not np.array_equal(*found)


def test_a_start_is_of_the_marginal_program(small_problem, ascended):
    with pytest.raises(ValueError, match="start has sites of the marginal program, and program"):
        nuts(*small_problem, seed=0, program="full", start=ascended)


def test_a_start_has_the_sites_of_the_model(small_problem, ascended):
    model, bags = small_problem
    other = replace(model, inducing_points=model.inducing_points[:2])
    with pytest.raises(ValueError, match=r"inducing_value of start has shape .*; expected"):
        nuts(other, bags, seed=0, start=ascended)
    with pytest.raises(TypeError, match="start is 1; expected a Posterior"):
        nuts(model, bags, seed=0, start=1)
