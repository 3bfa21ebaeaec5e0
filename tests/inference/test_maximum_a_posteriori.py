"""The mode: where gradients vanish, as in scikit-learn, and a point in predictions."""

import warnings
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.diagnostics import compare
from milzoo.inference import Posterior, laplace, maximum_a_posteriori, nuts
from milzoo.inference.gaussian import kinks, whitened_program
from milzoo.inference.maximum_a_posteriori import _Search
from milzoo.models import AtLeastOne, CardinalityModel, NormalCardinality
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info, threadpool_limits


@pytest.fixture(scope="module")
def bags():
    design = simulate_instances(40, range(1, 6), num_features=6, seed=0)
    return simulate(CardinalityModel(NormalCardinality(0.5, 0.2), 1.5), design, seed=1)[0]


def model_with(prior):
    return CardinalityModel(NormalCardinality(0.5, 0.2), 0.7, prior, intercept_scale=2.0)


@pytest.fixture(scope="module")
def mode(bags):
    return maximum_a_posteriori(model_with("normal"), bags, seed=0)


def mode_of(posterior, site="weights"):
    return posterior.tree["posterior"][site].to_numpy()[0, 0]


@pytest.mark.slow
def test_a_search_has_one_thread_of_lapack(bags, monkeypatch):
    """Threads that wait for each other in small calls made it nine times as slow."""
    num_threads, loss = [], _Search.loss

    def spied(self, parts):
        num_threads.extend(p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas")
        return loss(self, parts)

    monkeypatch.setattr(_Search, "loss", spied)
    with threadpool_limits(2, user_api="blas"):
        maximum_a_posteriori(model_with("normal"), bags, seed=0, max_steps=2)
    assert num_threads and set(num_threads) == {1}


@pytest.mark.slow
def test_a_smooth_mode_is_the_mean_of_laplace(bags, mode):
    expected = laplace(model_with("normal"), bags, seed=0).approximation.mean
    np.testing.assert_allclose(mode.approximation.point, expected, atol=1e-5)
    assert mode.status.kind == "converged"


@pytest.mark.slow
def test_likelihood_gradients_at_kinks_are_within_the_priors(bags):
    """1/s at weights that are not 0, at most 1/s at those that are: no step leads up."""
    model = CardinalityModel(NormalCardinality(0.5, 0.2), 0.6, "laplace")
    found = mode_of(maximum_a_posteriori(model, bags, seed=0))

    def log_likelihood(weights):
        prior = -jnp.sum(jnp.abs(weights)) / 0.6
        return log_density(model, (bags,), {}, {"weights": weights})[0] - prior

    with jax.enable_x64(True):
        gradient = np.asarray(jax.jit(jax.grad(log_likelihood))(jnp.asarray(found)))
    is_zero = found == 0
    assert 0 < is_zero.sum() < 6
    np.testing.assert_allclose(gradient[~is_zero], np.sign(found[~is_zero]) / 0.6, atol=1e-4)
    assert (np.abs(gradient[is_zero]) <= 1 / 0.6 + 1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["normal", "laplace"])
def test_bags_of_one_are_logistic_regression(prior):
    random = np.random.default_rng(2)
    instances = random.normal(size=(60, 4))
    labels = (random.uniform(size=60) < 1 / (1 + np.exp(-2 * instances[:, 0]))).astype(int)
    bags = Bags.from_arrays(instances, np.arange(60), labels)
    model = CardinalityModel(AtLeastOne(), 0.5, prior)
    found = mode_of(maximum_a_posteriori(model, bags, seed=0))
    # Its penalty is ½‖θ‖²/C, or ‖θ‖₁/C.
    strength = {"C": 0.25} if prior == "normal" else {"C": 0.5, "l1_ratio": 1, "solver": "saga"}
    reference = LogisticRegression(
        fit_intercept=False, tol=1e-10, max_iter=100_000, random_state=0, **strength
    )
    expected = reference.fit(instances, labels).coef_[0]
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.in_ci
def test_a_sparse_process_has_the_mode_of_laplace(small_problem):
    model, bags = small_problem
    found = maximum_a_posteriori(model, bags, seed=0).approximation.point
    np.testing.assert_allclose(found, laplace(model, bags, seed=0).approximation.mean, atol=1e-5)


@pytest.mark.slow
def test_kinks_are_counted_in_unconstrained_coordinates(scene_of_clusters):
    """A 2 × 2 Cholesky factor has three, whatever its shape: 2 × 4 of them, means, 2 × 3 sticks."""
    model, bags = scene_of_clusters(6, range(2, 4), seed=1)
    with jax.enable_x64(True):
        gradients = kinks(whitened_program(model, bags))
    np.testing.assert_array_equal(gradients, np.zeros(8 * 3 + 8 * 2 + 6))


def all_alike_or_not(count, size):
    """The same for θ and −θ: θ = 0 has no gradient, and is no mode."""
    fraction = jnp.abs(2 * count / size - 1)
    return jnp.stack([-5 * fraction, -5 * (1 - fraction)])


@pytest.mark.slow
def test_more_starts_leave_a_saddle():
    random = np.random.default_rng(0)
    labels = np.arange(20) % 2
    side = random.choice([-1.0, 1.0], (20, 4)) * (1 - labels[:, None]) + labels[:, None]
    instances = side[:, :, None] * (2.0 + random.normal(size=(20, 4, 1)))
    bags = Bags.from_list(list(instances), labels=labels)
    model = CardinalityModel(all_alike_or_not)
    one, more = (maximum_a_posteriori(model, bags, seed=3, num_starts=n) for n in (1, 4))

    def density_at_mode(posterior):
        draws = {name: jnp.asarray(v) for name, v in posterior.stored_draws().items()}
        with jax.enable_x64(True):
            return float(log_density(model, (bags,), {}, {n: v[0] for n, v in draws.items()})[0])

    assert mode_of(one) == 0
    assert abs(mode_of(more)) > 0.5
    assert density_at_mode(more) > density_at_mode(one) + 1
    assert "the highest of 4 starts" in more.status.sentence


@pytest.mark.slow
def test_a_search_cut_short_says_so(bags):
    cut = maximum_a_posteriori(model_with("normal"), bags, seed=0, max_steps=2)
    assert cut.status.kind == "max_steps" and "gradient" in cut.status.sentence


# ------------------------------------------------------------------ a point


@pytest.mark.slow
def test_a_point_has_no_density_and_no_interval(bags, mode):
    assert mode.log_density(mode.draws(3, seed=0)) is None
    assert (np.ptp(mode.draws(3, seed=0)["weights"], axis=0) == 0).all()
    with pytest.raises(ValueError, match="prediction has one draw, as maximum_a_posteriori"):
        mode.predict(bags).bag_interval()


@pytest.mark.slow
def test_the_guide_of_a_point_is_the_point(bags, mode):
    with jax.enable_x64(True):
        sites = trace(seed(mode.guide, 0)).get_trace(bags)
    np.testing.assert_array_equal(sites["weights"]["value"], mode_of(mode))
    np.testing.assert_array_equal(sites["intercept"]["value"], mode_of(mode, "intercept"))


@pytest.mark.slow
def test_a_point_comes_back_from_its_file(mode, tmp_path):
    mode.save(tmp_path / "mode.nc")
    loaded = Posterior.load(tmp_path / "mode.nc")
    np.testing.assert_array_equal(mode_of(loaded), mode_of(mode))
    np.testing.assert_array_equal(loaded.approximation.point, mode.approximation.point)
    assert loaded.model.potential == mode.model.potential


@dataclass(frozen=True)
class Own:
    strength: float = 1.0

    def __call__(self, count, size):
        return jnp.stack([-self.strength * count, 0.0 * count])


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("potential", [Own(), Own().__call__])
def test_a_potential_of_ones_own_is_in_no_file(bags, potential, tmp_path):
    found = maximum_a_posteriori(CardinalityModel(potential), bags, seed=0)
    with pytest.raises(ValueError, match=r"potential is .*Own.*, a function of your own, which no"):
        found.save(tmp_path / "mode.nc")
    assert not (tmp_path / "mode.nc").exists()


@pytest.mark.slow
def test_compare_says_that_a_mode_is_one_point(bags, mode, tmp_path):
    sampled = nuts(model_with("normal"), bags, seed=0, num_samples=500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comparison = compare({"mode": mode, "NUTS": sampled}, test=bags)
        assert comparison.save_report(tmp_path).exists()
    row = comparison.table.loc["mode"]
    assert row["sd_ratio"] == 0 and np.isnan(row["khat"])
    expected = sampled.stored_draws()["weights"]
    error = (mode_of(mode) - expected.mean(axis=0)) / expected.std(axis=0, ddof=1)
    found = comparison.verdicts["mode"].reference.accuracy
    weights = [n.startswith("weights") for n in found.names]
    np.testing.assert_allclose(found.error[weights], error, rtol=1e-10)
    assert "mode's mode has" in comparison.sentences["mode"]
    alone = compare({"mode": mode})
    assert "It is one point, without any interval." in alone.sentences["mode"]
    assert "It is one point, without any interval." in comparison.sentences["mode"]
    assert "k̂" not in comparison.sentences["mode"]


# ------------------------------------------------------------------ what it refuses


def test_bags_without_labels_are_refused():
    design = simulate_instances(3, 2, num_features=2, seed=0)
    with pytest.raises(ValueError, match="bags have no labels; maximum_a_posteriori needs one"):
        maximum_a_posteriori(CardinalityModel(), design, seed=0)


def test_laplace_refuses_a_prior_with_a_kink(bags):
    with pytest.raises(ValueError, match="Laplace distribution, whose density has a kink at 0"):
        laplace(model_with("laplace"), bags, seed=0)
