"""Distances in nats against known ones: Gaussians, and a grid."""

import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import compare
from milzoo.diagnostics.checks.dispersed_starts import Missed
from milzoo.inference import coordinate_ascent, grid, laplace, nuts
from milzoo.models import RBF, VGPMIL, Gaussian
from milzoo.models.vwsgp import VWSGP

pytestmark = pytest.mark.in_ci

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(16, range(1, 5), num_features=2, seed=3)
TWO = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS[:2], mean=-0.8)


@pytest.fixture(scope="module")
def comparisons():
    """One model's approximations beside its grid, and beside a sampler."""
    labels, _ = simulate(TWO, DESIGN, seed=1)
    approximations = {
        "coordinate_ascent": coordinate_ascent(TWO, labels, seed=0),
        "laplace": laplace(TWO, labels, seed=0),
    }
    exact, sampler = grid(TWO, labels, seed=0), nuts(TWO, labels, seed=0, num_samples=2000)
    return compare(approximations | {"grid": exact}), compare(approximations | {"nuts": sampler})


def kl_on_the_grid(posterior, exact):
    """KL(q‖p) = Σ q (log q − log p), by the points of an even grid."""
    axes = [np.linspace(-8.0, 8.0, 321)] * 2
    u = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    log_q = posterior.log_density({"inducing_value": u})
    log_p = exact.log_density({"inducing_value": u})
    area = (axes[0][1] - axes[0][0]) ** 2
    q = np.exp(log_q)
    assert q.sum() * area == pytest.approx(1.0, abs=1e-3)
    return area * np.sum(np.where(q > 1e-12, q * (log_q - log_p), 0.0))


@pytest.mark.slow
def test_divergences_equal_sums_over_a_grid(comparisons):
    by_grid, by_chains = comparisons
    exact = by_grid.posteriors["grid"]
    for name in ("coordinate_ascent", "laplace"):
        expected = kl_on_the_grid(by_grid.posteriors[name], exact)
        for found in (by_grid.divergences[name], by_chains.divergences[name]):
            # The grid's density is interpolated between its points.
            assert found.kl == pytest.approx(expected, abs=4.9 * found.kl_error + 2e-3)
            assert found.kl_error < 0.03


def test_the_gap_is_evidence_less_bound(comparisons):
    by_grid, by_chains = comparisons
    found = by_grid.divergences["coordinate_ascent"]
    evidence = by_grid.posteriors["grid"].elbo[-1]
    bound = by_grid.posteriors["coordinate_ascent"].elbo[-1]
    assert found.source == "grid" and found.log_evidence_error < 1e-4
    assert found.gap == pytest.approx(evidence - bound, abs=1e-4)
    assert found.lost == pytest.approx(found.gap - found.kl)
    assert found.lost > 0.5
    assert f"Its ELBO is {found.gap:.1f} nats below" in by_grid.sentences["coordinate_ascent"]
    assert "KL(q‖p) is " in by_grid.sentences["laplace"]
    assert by_chains.divergences["laplace"].source == "nuts"
    assert np.isnan(by_chains.divergence_table.loc["laplace", "gap"])


def test_the_bridge_starts_at_the_largest_ess(comparisons):
    known = comparisons[1].posteriors
    shorter = nuts(TWO, known["nuts"].bags, seed=1, num_samples=1000)
    compared = compare({"shorter": shorter, **known})
    assert compared.divergences["laplace"].source == "nuts"


def test_whoever_missed_a_mode_has_no_divergence(comparisons):
    """Nor do its draws give a log Z that others are measured by."""

    def sources(name):
        compared = compare(comparisons[1].posteriors)
        # In the place of what is found when first asked for.
        compared.__dict__["missed"] = {name: Missed(mass=0.9, size=50.0, own_size=1.0)}
        return {name: found.source for name, found in compared.divergences.items()}

    assert sources("coordinate_ascent") == {"laplace": "nuts"}
    assert "nuts" not in sources("nuts").values()


def test_an_exact_approximation_is_no_nats_away():
    model = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))
    targets, _ = simulate(model, DESIGN, seed=1)
    exact = coordinate_ascent(model, targets, seed=0)
    compared = compare({"exact": exact, "nuts": nuts(model, targets, seed=0)})
    found = compared.divergences["exact"]
    assert (found.source, found.kl, found.kl_error) == ("exact", 0.0, 0.0)
    assert found.gap == pytest.approx(0.0, abs=1e-6)
