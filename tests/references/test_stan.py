"""Stan programs of entries: what their data say, and the density that Stan has of them."""

import json
import re

import numpy as np
import pytest
from milzoo.inference.runtime.densities import log_joint
from milzoo.references import entry_named, stan_program
from scipy.special import expit
from scipy.stats import bernoulli, nbinom, norm, t

# By the name of the entry: log p(observed | sums), as SciPy has it.
LIKELIHOODS = {
    "vwsgp-musk1-20": lambda s, y, data: bernoulli.logpmf(y, expit(s)),
    "vwsgp-probit-musk1-20": lambda s, y, data: bernoulli.logpmf(
        y, norm.cdf(s / np.sqrt(1 + data["noise"]))
    ),
    "vwsgp-gaussian-simulated-9": lambda s, y, data: norm.logpdf(y, s, np.sqrt(data["noise"])),
    "vwsgp-student-simulated-9": lambda s, y, data: t.logpdf(
        y, data["degrees_of_freedom"], s, data["scale"]
    ),
    "vwsgp-counts-simulated-9": lambda s, y, data: nbinom.logpmf(y, data["total_count"], expit(-s)),
}


def a_problem(name):
    """Model, bags, program, its data as a file has them, and two points in Stan's coordinates."""
    model, bags = entry_named(name).problem()
    program, data = stan_program(model, bags)
    data = json.loads(json.dumps(data))
    random = np.random.default_rng(0)
    points = 0.5 * random.normal(size=(2, data["num_inducing"] + data["num_bags"]))
    return model, bags, program, data, points


def sites_of(points, data):
    """u = Lε, and s = Vε + √k̄ e."""
    noise, rest = np.split(points, [data["num_inducing"]], axis=1)
    scale = np.array(data["residual_scale"])
    return {
        "inducing_value": noise @ np.array(data["cholesky"]).T,
        "bag_latent": noise @ np.array(data["projection"]).T + scale * rest,
    }


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_data_have_the_density_of_the_full_program(name):
    """Less that of a standard Gaussian in Stan's coordinates, whose Jacobian is a constant."""
    model, bags, _, data, points = a_problem(name)
    sites = sites_of(points, data)
    (observed,) = (np.array(data[site]) for site in ("bag_label", "bag_target") if site in data)
    likelihood = LIKELIHOODS[name](sites["bag_latent"], observed, data).sum(axis=1)
    jacobian = np.linalg.slogdet(data["cholesky"])[1] + np.log(data["residual_scale"]).sum()
    expected = norm.logpdf(points).sum(axis=1) + likelihood - jacobian
    np.testing.assert_allclose(log_joint(model, "full", sites, bags), expected, rtol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_program_declares_what_the_data_have(name):
    _, _, program, data, _ = a_problem(name)
    declared = program[program.index("data {") : program.index("parameters {")]
    assert set(re.findall(r"(\w+);", declared)) == set(data)


@pytest.mark.parametrize(
    ("name", "found"),
    [("bmil-simulated-5", "BMIL"), ("vwsgp-priors-simulated-12", "VWSGP with priors")],
)
def test_another_model_is_refused(name, found):
    with pytest.raises(NotImplementedError, match=f"model is {found}; .*take .*flat_density"):
        stan_program(*entry_named(name).problem())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the server that PyStan runs
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_stan_has_the_density_of_the_full_program(name):
    """Where PyStan is installed: up to a constant, which it leaves out."""
    stan = pytest.importorskip("stan")
    model, bags, program, data, points = a_problem(name)
    built = stan.build(program, data=data)
    found = [built.log_prob(point.tolist()) for point in points]
    expected = log_joint(model, "full", sites_of(points, data), bags)
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=1e-9)
