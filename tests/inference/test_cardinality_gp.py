"""A Gaussian process on the cardinality kernel: the dense process, its bound, its samplers.

Statistical tests are seeded: the bound at 4.5 standard errors (false alarm 7e-6), two samplers at
5.5 over 2 × 44 numbers (3e-6).
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.inference import Posterior, coordinate_ascent, gibbs, nuts
from milzoo.inference.serialization import decode, encode
from milzoo.models import (
    RBF,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    Gaussian,
    MeanCardinalityKernel,
    NormalCardinality,
)
from scipy.stats import multivariate_normal

VARIANCE = 4.0


@pytest.fixture(scope="module")
def kernel():
    model = CardinalityModel(NormalCardinality(0.5, 0.3))
    return CardinalityKernel(model, np.array([2.0, -1.5]), RBF(1.0, 0.8))


@pytest.fixture(scope="module")
def design():
    return simulate_instances(22, range(1, 5), num_features=2, seed=0)


@pytest.fixture(scope="module")
def problem(kernel, design):
    """Labels drawn from the process itself."""
    model = CardinalityGP.at_bags(kernel, design, VARIANCE)
    return model, simulate(model, design, seed=2)[0]


@pytest.fixture(scope="module")
def fitted(problem):
    return coordinate_ascent(*problem, seed=0, tolerance=1e-12)


def dense(kernel, one, other):
    return VARIANCE * kernel(one, other)


@pytest.mark.slow
def test_new_bags_have_the_dense_conditional_distribution(kernel, design):
    model = CardinalityGP.at_bags(kernel, design, VARIANCE, jitter=1e-9)
    new = simulate_instances(5, 3, num_features=2, seed=1)
    values = np.random.default_rng(0).normal(size=design.num_bags)
    within = dense(kernel, design, design) + 1e-9 * VARIANCE * np.eye(design.num_bags)
    weights = np.linalg.solve(within, dense(kernel, design, new)).T
    variance = VARIANCE - np.sum(weights * dense(kernel, new, design), axis=1)
    with jax.enable_x64(True):
        found = model.accumulated(new)
        mean = found.mean(jnp.asarray(values))
    np.testing.assert_allclose(mean, weights @ values, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.residual_variance, variance, rtol=1e-6)


@pytest.mark.slow
def test_bound_for_targets_is_the_dense_evidence(kernel, design):
    targets = np.random.default_rng(1).normal(size=design.num_bags)
    bags = design.with_targets(targets)
    model = CardinalityGP.at_bags(kernel, design, VARIANCE, likelihood=Gaussian(0.5), jitter=1e-9)
    found = coordinate_ascent(model, bags, seed=0)
    covariance = dense(kernel, design, design) + 0.5 * np.eye(design.num_bags)
    expected = multivariate_normal(np.zeros(design.num_bags), covariance).logpdf(targets)
    np.testing.assert_allclose(found.elbo[-1], expected, rtol=1e-6)


@pytest.mark.slow
def test_the_bound_is_the_trace_elbo_of_its_guide(problem, fitted, trace_elbo_draws):
    draws = trace_elbo_draws(fitted, problem[1])
    error = draws.std(ddof=1) / np.sqrt(len(draws))
    assert abs(draws.mean() - fitted.elbo[-1]) < 4.5 * error
    assert (np.diff(fitted.elbo) > -1e-10 * np.abs(fitted.elbo[0])).all()
    assert fitted.status.kind == "converged"


@pytest.mark.slow
def test_gibbs_agrees_with_nuts(problem, moments):
    model, bags = problem
    new = simulate_instances(22, 2, num_features=2, seed=3)
    found = []
    for engine, options in ((nuts, {}), (gibbs, {"num_samples": 3000, "thin": 3})):
        posterior = engine(model, bags, seed=1, **options)
        probability = posterior.predict(new).bag_draws
        site = posterior.tree["posterior"]["inducing_value"].to_numpy()
        both = [site, probability.reshape(*site.shape[:2], -1)]
        found.append(moments(np.concatenate(both, axis=2)))
    assert found[0].largest_z(found[1]) <= 5.5


@pytest.mark.slow
def test_far_from_all_bags_nothing_is_known(problem, fitted):
    """Where no bag is alike the prior comes back: P = E σ(s) = ½, whatever was learned."""
    far = Bags.from_list([np.full((2, 2), 50.0)])
    prediction = fitted.predict(far)
    np.testing.assert_allclose(prediction.bag_probability, 0.5, atol=1e-3)
    near = fitted.predict(problem[1])
    assert np.abs(near.bag_probability - 0.5).max() > 0.2
    assert np.ptp(fitted.predict(far).bag_draws) < 1e-3
    assert np.diff(near.bag_interval(), axis=0).min() > 0.05


@pytest.mark.slow
def test_an_instance_is_a_bag_that_holds_it_alone(problem, fitted):
    bags = problem[1].select([1, 2])
    alone = Bags.from_arrays(bags.instances, np.arange(bags.num_instances))
    found, expected = fitted.predict(bags).instance_draws, fitted.predict(alone).bag_draws
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.slow
def test_the_variance_is_learned_or_has_a_prior(problem):
    model, bags = problem
    learned = coordinate_ascent(
        CardinalityGP.at_bags(model.kernel, bags, 1.0), bags, seed=0, learn_hyperparameters=True
    )
    assert learned.model.process_variance != 1.0
    fixed = coordinate_ascent(CardinalityGP.at_bags(model.kernel, bags, 1.0), bags, seed=0)
    assert learned.elbo[-1] >= fixed.elbo[-1]
    prior = CardinalityGP.at_bags(model.kernel, bags, dist.LogNormal(0.0, 1.0))
    assert prior.latent_sites == ("inducing_value", "variance")


@pytest.mark.slow
def test_a_posterior_comes_back_from_its_file(problem, fitted, tmp_path):
    fitted.save(tmp_path / "process.nc")
    loaded, bags = Posterior.load(tmp_path / "process.nc"), problem[1]
    np.testing.assert_array_equal(loaded.predict(bags).bag_draws, fitted.predict(bags).bag_draws)


# ------------------------------------------------------------------ what it refuses


def test_bad_input_is_refused(kernel, design, without_type_checks):
    with pytest.raises(ValueError, match=r"process_variance is 0.0; expected a positive"):
        CardinalityGP.at_bags(kernel, design, 0.0)
    with pytest.raises(ValueError, match=r"CardinalityGP jitter is -1.0; expected a finite"):
        CardinalityGP.at_bags(kernel, design, jitter=-1.0)
    with pytest.raises(ValueError, match="CardinalityGP likelihood is 'cauchy'; expected"):
        CardinalityGP.at_bags(kernel, design, likelihood="cauchy")
    narrow = Bags.from_list([np.ones((2, 1))])
    with pytest.raises(ValueError, match="bags have 1 features, but there are weights for 2"):
        CardinalityGP.at_bags(kernel, narrow)
    with pytest.raises(ValueError, match="bags have 1 features, but this process was made at"):
        CardinalityGP.at_bags(kernel, design).accumulated(narrow)


@pytest.mark.in_ci
def test_another_fold_of_other_sizes_compiles_nothing(compilations):
    """Bags Z are padded within the model, and so are the numbers of a mean kernel's bags."""
    learned = CardinalityModel(NormalCardinality(0.5, 0.3))
    draws = {"weights": np.array([[2.0, -1.5], [1.0, 0.5]])}
    counts = []
    for seed in (0, 1):
        fold = simulate_instances(22, range(1, 5), num_features=2, seed=seed)
        others = simulate_instances(10 + seed, 2, num_features=2, seed=2 + seed)
        kernel = MeanCardinalityKernel.of(learned, draws, others, RBF(1.0, 0.8))
        model = CardinalityGP.at_bags(kernel, fold, VARIANCE)
        assert model.made_at.num_instances == fold.num_instances
        before = compilations.number
        posterior = coordinate_ascent(model, simulate(model, fold, seed=4)[0], seed=0)
        posterior.predict(others)
        counts.append(compilations.number - before)
    assert counts[0] > 0 and counts[1] == 0


def test_a_process_on_a_mean_kernel_is_saved(tmp_path):
    """Its draws are values by name; a file whose draws are none is refused."""
    fold = simulate_instances(12, 2, num_features=2, seed=0)
    draws = {"weights": np.array([[2.0, -1.5], [1.0, 0.5]])}
    learned = CardinalityModel(NormalCardinality(0.5, 0.3))
    kernel = MeanCardinalityKernel.of(learned, draws, fold, RBF(1.0, 0.8))
    model = CardinalityGP.at_bags(kernel, fold, VARIANCE)
    posterior = coordinate_ascent(model, simulate(model, fold, seed=4)[0], seed=0)
    posterior.save(tmp_path / "posterior.nc")
    loaded = Posterior.load(tmp_path / "posterior.nc")
    np.testing.assert_array_equal(
        loaded.predict(fold).bag_probability, posterior.predict(fold).bag_probability
    )
    assert loaded.model.learned_from_labels == "a kernel learned from the labels of 12 of its bags"
    written = encode(kernel)
    written["fields"]["draws"] = 5.0
    with pytest.raises(ValueError, match="MeanCardinalityKernel that cannot be made"):
        decode(written)
