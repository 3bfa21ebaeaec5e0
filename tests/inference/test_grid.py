"""The grid against adaptive quadrature and NUTS, and the distribution that it leaves."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.inference import Posterior, grid, nuts
from milzoo.inference.grid import BilinearDistribution
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import VGPMIL, CardinalityModel, GammaScaleMixture, ScoreThreshold
from scipy.integrate import dblquad
from scipy.stats import norm

MODEL = ScoreThreshold()


@pytest.fixture(scope="module")
def bags():
    """Twelve bags of three with two scores as features: one knows, the other is noise."""
    random = np.random.default_rng(0)
    labels = np.arange(12) % 2
    knows = random.normal(size=36) + np.repeat(labels, 3)
    instances = np.column_stack([knows, random.normal(size=36)])
    return Bags.from_arrays(instances, np.repeat(np.arange(12), 3), labels)


@pytest.fixture(scope="module")
def posterior(bags):
    return grid(MODEL, bags, seed=0, num_draws=4_000)


@pytest.fixture(scope="module")
def by_quadrature(bags):
    """Function of a function of T and log s that integrates it times p(Y, T, s)."""
    scores = bags.instances.reshape(12, 3, 2)
    is_positive = bags.labels[:, None] == 1

    def density(threshold, log_softness):
        logits = (scores - threshold) / np.exp(log_softness)
        log_none = -np.logaddexp(0.0, logits).sum(axis=1)  # (B, K)
        with np.errstate(divide="ignore"):  # a probability of 0
            of_label = np.where(is_positive, np.log(-np.expm1(log_none)), log_none)
        likelihood = np.exp(of_label.sum(axis=0)).mean()
        return likelihood * norm.pdf(threshold, 0, 2) * norm.pdf(log_softness, -1, 1)

    def integral(function):
        def integrand(log_softness, threshold):
            return function(threshold, log_softness) * density(threshold, log_softness)

        return dblquad(integrand, -9, 9, -8, 6, epsabs=1e-9, epsrel=1e-6)[0]

    return integral


@pytest.mark.slow
def test_evidence_and_means_are_those_of_adaptive_quadrature(posterior, by_quadrature):
    evidence = by_quadrature(lambda threshold, log_softness: 1.0)
    np.testing.assert_allclose(posterior.elbo, [np.log(evidence)], atol=1e-5)
    q = posterior.approximation
    weight = np.exp(q.log_posterior - q.log_posterior.max())
    weight /= weight.sum()
    # The flat vector has its sites in the order of their names: log s, T.
    mean = by_quadrature(lambda threshold, log_softness: threshold) / evidence
    np.testing.assert_allclose(weight.sum(axis=0) @ q.second, mean, atol=1e-5)
    mean = by_quadrature(lambda threshold, log_softness: log_softness) / evidence
    np.testing.assert_allclose(weight.sum(axis=1) @ q.first, mean, atol=1e-5)


@pytest.mark.slow
def test_a_finer_grid_has_the_same_evidence(bags, posterior):
    finer = grid(MODEL, bags, seed=0, num_points=401, num_draws=1)
    np.testing.assert_allclose(finer.elbo, posterior.elbo, atol=1e-6)
    assert posterior.status.kind == "converged"
    assert "on 301 × 301 points" in posterior.status.sentence


@pytest.mark.slow
def test_draws_are_those_of_the_grid_and_of_nuts(bags, posterior):
    q = posterior.approximation
    weight = np.exp(q.log_posterior - q.log_posterior.max())
    weight /= weight.sum()
    drawn = posterior.stored_draws()
    sampled = nuts(MODEL, bags, seed=0, num_samples=2_000).stored_draws()
    for name, margin, axis in [
        ("softness", weight.sum(axis=1), q.first),
        ("threshold", weight.sum(axis=0), q.second),
    ]:
        transform = np.log if name == "softness" else np.asarray
        mean = margin @ axis
        sd = np.sqrt(margin @ (axis - mean) ** 2)
        values = transform(drawn[name])
        # Two looks at 4.5 standard errors.
        assert abs(values.mean() - mean) < 4.5 * sd / np.sqrt(len(values))
        assert abs(values.std() / sd - 1) < 0.05
        # 8,000 draws of NUTS have an ESS of 1,000 at least; agreement at length is tests/slow's.
        assert abs(transform(sampled[name]).mean() - mean) < 4.5 * sd / np.sqrt(1_000)


@pytest.mark.slow
def test_the_density_of_draws_is_the_posterior(bags, posterior):
    draws = {name: value[:500] for name, value in posterior.stored_draws().items()}
    exact = log_joint(MODEL, "marginal", draws, bags) - posterior.elbo[0]
    # Between points that are h apart a bilinear density is too high by h²/8 of its relative
    # curvature: with h a twentieth of an sd 0.0003 (x² − 1), x in sds.
    error = np.abs(posterior.log_density(draws) - exact)
    assert error.mean() < 0.01
    assert np.quantile(error, 0.9) < 0.03


@pytest.mark.slow
def test_its_guide_draws_from_it(posterior, bags):
    from numpyro.infer import Predictive

    with jax.enable_x64(True):
        drawn = Predictive(posterior.guide, num_samples=4_000)(jax.random.key(1), bags)
    stored = posterior.stored_draws()
    for name in ("threshold", "softness"):
        logs = [np.log(np.abs(np.asarray(one))) for one in (drawn[name], stored[name])]
        error = logs[1].std() * np.sqrt(2 / 4_000)
        assert abs(logs[0].mean() - logs[1].mean()) < 4.5 * error


@pytest.mark.slow
def test_a_grid_posterior_comes_back_from_a_file(posterior, tmp_path):
    posterior.save(tmp_path / "grid.nc")
    again = Posterior.load(tmp_path / "grid.nc")
    np.testing.assert_array_equal(
        again.approximation.log_posterior, posterior.approximation.log_posterior
    )
    assert again.status == posterior.status


@pytest.mark.slow
def test_bilinear_density_is_normalised_and_matches_its_draws():
    axes = jnp.linspace(-1.0, 1.0, 5), jnp.linspace(0.0, 3.0, 4)
    log_density = jax.random.normal(jax.random.key(0), (5, 4)).at[jnp.array([0, -1])].set(-40.0)
    distribution = BilinearDistribution(*axes, log_density.at[:, jnp.array([0, -1])].set(-40.0))
    fine = [np.linspace(axis[0], axis[-1], 200 * (len(axis) - 1) + 1) for axis in axes]
    points = jnp.asarray(np.stack(np.meshgrid(*fine, indexing="ij"), axis=-1))
    density = np.exp(np.asarray(distribution.log_prob(points)))
    cell = (fine[0][1] - fine[0][0]) * (fine[1][1] - fine[1][0])
    np.testing.assert_allclose(density.sum() * cell, 1.0, rtol=1e-4)
    drawn = np.asarray(distribution.sample(jax.random.key(1), (50_000,)))
    for n, axis in enumerate(fine):
        margin = density.sum(axis=1 - n) * cell
        mean = margin @ axis
        sd = np.sqrt(margin @ (axis - mean) ** 2)
        assert abs(drawn[:, n].mean() - mean) < 4.5 * sd / np.sqrt(len(drawn))
        mass = margin[axis < mean].sum()
        fraction = np.mean(drawn[:, n] < mean)
        assert abs(fraction - mass) < 4.5 * 0.5 / np.sqrt(len(drawn)) + margin.max()
    assert distribution.log_prob(jnp.array([0.0, 3.1])) == -jnp.inf


# ------------------------------------------------------------------ what it refuses


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 3.0)])
def test_distant_modes_are_found(alpha, beta):
    """Under these ψ thirty instances alike are all positive or all negative, far out."""
    random = np.random.default_rng(0)
    labels = (np.arange(10) < 3).astype(int)
    bags = Bags.from_list([random.normal(size=(3, 2)) for _ in labels], labels)
    logistic = VGPMIL.for_bags(bags, num_inducing=2, variance=4.0, length_scale=4.0, mean=0.0)
    model = replace(logistic, scale_mixture=GammaScaleMixture(alpha, beta))
    after = grid(model, bags, seed=0, num_points=101)
    before = grid(replace(model, sharpness=1.0), bags, seed=0, num_points=101)  # labels are coins
    values = before.stored_draws()["inducing_value"]
    assert (np.abs(values) > 10).all()
    # Of 1,000 draws half are negative, within five standard errors.
    assert abs((values < 0).all(axis=1).mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)
    # The labels are those of all negative with three wrong, or of all positive with seven: H = 100.
    wrong, right = np.log(1 / 101), np.log(100 / 101)
    expected = np.logaddexp(3 * wrong + 7 * right, 7 * wrong + 3 * right) - np.log(2)
    log_constant = before.elbo[-1] + 10 * np.log(2)
    assert after.elbo[-1] - log_constant == pytest.approx(expected, abs=1e-3)


def test_bad_input_is_refused(bags):
    with pytest.raises(ValueError, match=r"CardinalityModel has 3 unknown .* grid is for 2"):
        grid(CardinalityModel(weight_scale=dist.HalfNormal(1.0)), bags, seed=0)
    with pytest.raises(ValueError, match="num_points is 2; expected at least 3"):
        grid(MODEL, bags, seed=0, num_points=2)
    with pytest.raises(ValueError, match="num_draws is 0; expected"):
        grid(MODEL, bags, seed=0, num_draws=0)
