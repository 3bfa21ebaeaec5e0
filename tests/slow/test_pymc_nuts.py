"""nutpie on the PyMC program of targets: most of its time is compilation."""

from milzoo.datasets import simulate, simulate_instances
from milzoo.inference.pymc_nuts import pymc_nuts
from milzoo.models import VWSGP, Gaussian
from numpyro.distributions import LogNormal


def test_nutpie_samples_targets_on_the_full_program():
    """The latent values of bags and the noise are sites."""
    design = simulate_instances(6, range(1, 4), num_features=2, seed=8)
    model = VWSGP.as_published(design, num_inducing=3, likelihood=Gaussian(LogNormal(0.0, 0.5)))
    bags, _ = simulate(model, design, seed=9)
    posterior = pymc_nuts(
        model, bags, seed=4, num_warmup=100, num_samples=50, num_chains=2, program="full"
    )
    tree = posterior.tree
    assert posterior.status.kind != "failed"
    assert set(tree["posterior"].data_vars) == {"inducing_value", "bag_latent", "noise"}
    assert tree["posterior"]["bag_latent"].shape == (2, 50, bags.num_bags)
    assert posterior.log_likelihood.shape == (2, 50, bags.num_bags)
