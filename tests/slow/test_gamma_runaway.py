r"""With a Gamma scale mixture the posterior runs away from where coordinate ascent stops.

Any ψ but the hyperbolic secant makes another model. With κ = y − ½ the paper's joint density is
N(f)·Π ψ(f_n) e^{κ_n f_n}. Its sum over y_n is e^{f/2} + e^{−f/2} = 2cosh(f/2): the prior of the
latent function has become

.. math:: p(f) ∝ N(f) \prod_n ψ(f_n) · 2\cosh(f_n/2).

For ψ = 1/(2cosh(f/2)) the product is 1 and p(f) is the Gaussian process. For a Gamma scale mixture
ψ(f) = (1 + f²/2β)^{−α} falls like a power while 2cosh(f/2) grows like e^{|f|/2}. So log p(f) has
one mode at f ≈ 0, where ψ·2cosh has curvature ¼ − α/β (a mode only if α > β/4), and one for each
pattern of signs far out, where its gradient −Q⁻¹f + ½ sgn f − 2α/f (Q the covariance of f) is zero:

.. math:: f = Q (½ \mathrm{sgn} f − 2α/f),

that is |f_n| ≈ ½ Σ_m k(x_n, x_m), which grows with the number of instances. The bag labels cost at
most log(H + 1) each and cannot prevent this. Coordinate ascent starts at f ≈ 0 and stops at the
mode there, if there is one; a sampler leaves it for the far modes, which have the mass.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference import Posterior, coordinate_ascent, gibbs, nuts
from milzoo.models import VGPMIL, GammaScaleMixture, PolyaGammaScaleMixture

ALPHA, BETA = 1.0, 3.0


@pytest.fixture(scope="module")
def problem() -> tuple[VGPMIL, Bags]:
    """Ten bags of three instances close to each other, three of them positive.

    Few instances make the barrier between the modes low (1.4 nats along f_n = c) while the far one
    is 230 nats higher, so that every chain crosses within its warm-up.
    """
    random = np.random.default_rng(0)
    bags = Bags.from_list(
        [random.normal(size=(3, 2)) for _ in range(10)], labels=(np.arange(10) < 3).astype(int)
    )
    return VGPMIL.for_bags(bags, num_inducing=2, variance=4.0, length_scale=4.0, mean=0.0), bags


def _size_under_q(model: VGPMIL, bags: Bags) -> float:
    """Mean |f| under q(u) p(f|u) of coordinate ascent."""
    posterior = coordinate_ascent(model, bags, seed=0)
    assert posterior.status.kind == "converged"
    with jax.enable_x64(True):
        conditional = model.conditional(bags)
        inducing_values = posterior.draws(500, seed=1)["inducing_value"]
        location = np.asarray(jax.vmap(conditional.mean)(inducing_values))
        scale = np.sqrt(np.asarray(conditional.residual_variance))
    noise = np.random.default_rng(0).standard_normal(location.shape)
    return float(np.abs(location + scale * noise).mean())


def _size_by_chain(posterior: Posterior) -> np.ndarray:
    """Mean |f| of each chain."""
    latent = posterior.tree["posterior"]["latent"].to_numpy()
    return np.abs(latent).mean(axis=(1, 2))


@pytest.fixture(scope="module")
def sampled_sizes(problem) -> dict[str, np.ndarray]:
    model, bags = problem
    gamma = replace(model, scale_mixture=GammaScaleMixture(ALPHA, BETA))
    lengths = {"num_warmup": 300, "num_samples": 200, "num_chains": 4}
    by_nuts = nuts(gamma, bags, seed=0, program="full", **lengths)
    by_gibbs = gibbs(gamma, bags, seed=0, keep=("inducing_value", "latent"), **lengths)
    return {"nuts": _size_by_chain(by_nuts), "gibbs": _size_by_chain(by_gibbs)}


@pytest.mark.parametrize("sampler", ["nuts", "gibbs"])
def test_gamma_chains_leave_the_mode_of_coordinate_ascent(problem, sampled_sizes, sampler):
    model, bags = problem
    local = _size_under_q(replace(model, scale_mixture=GammaScaleMixture(ALPHA, BETA)), bags)
    assert local < 3
    assert (sampled_sizes[sampler] > 10 * local).all()


@pytest.mark.parametrize("sampler", ["nuts", "gibbs"])
def test_the_runaway_ends_where_the_derivation_says(problem, sampled_sizes, sampler):
    model, bags = problem
    with jax.enable_x64(True):
        conditional = model.conditional(bags)
        projection = np.asarray(conditional.projection)
        residual = np.asarray(conditional.residual_variance)
    covariance = projection @ projection.T + np.diag(residual)  # Q
    latent = covariance.sum(axis=1) / 2
    for _ in range(100):
        latent = covariance @ (0.5 - 2 * ALPHA / latent)
    np.testing.assert_allclose(sampled_sizes[sampler], latent.mean(), rtol=0.03)


def test_on_the_logistic_model_coordinate_ascent_and_nuts_agree(problem):
    model, bags = problem
    assert model.scale_mixture == PolyaGammaScaleMixture()
    posterior = nuts(
        model, bags, seed=0, program="full", num_warmup=300, num_samples=200, num_chains=4
    )
    np.testing.assert_allclose(_size_by_chain(posterior), _size_under_q(model, bags), rtol=0.3)


def test_coordinate_ascent_runs_away_without_a_near_mode(problem):
    # α = ½ < β/4 = ¾: f = 0 is a valley of ψ·2cosh.
    model, bags = problem
    assert _size_under_q(replace(model, scale_mixture=GammaScaleMixture(0.5, BETA)), bags) > 30
