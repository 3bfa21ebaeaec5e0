"""What engines return: draws, densities, predictions, files."""

from dataclasses import replace
from functools import partial

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from milzoo.datasets import Bags
from milzoo.inference import Posterior, coordinate_ascent, gibbs, laplace, nuts, serialization, svi
from milzoo.inference import posterior as posterior_module
from milzoo.inference.closed_form.sparse_gp import InducingApproximation
from milzoo.inference.posterior import _mixed
from milzoo.models import VGPMIL, GammaScaleMixture, ScaleMixture
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits


@pytest.fixture(scope="session")
def posteriors(small_problem, when_asked_for) -> dict[str, Posterior]:
    model, bags = small_problem
    short = {"num_warmup": 100, "num_samples": 50, "num_chains": 2}
    engines = {
        "coordinate_ascent": partial(coordinate_ascent, num_draws=60),
        "laplace": partial(laplace, num_draws=60),
        "svi": partial(svi, num_draws=60, max_steps=300),
        "nuts": partial(nuts, **short),
        "gibbs": partial(gibbs, **short),
    }
    return when_asked_for(lambda name: engines[name](model, bags, seed=0))


ENGINES = ["coordinate_ascent", "laplace", "svi", "nuts", "gibbs"]
every_engine = pytest.mark.parametrize("engine", ENGINES)
APPROXIMATE = ["coordinate_ascent", "laplace", "svi"]


@pytest.mark.slow
@every_engine
def test_tree_has_arviz_groups_with_named_dims(posteriors, small_problem, engine):
    _, bags = small_problem
    posterior = posteriors[engine]
    assert posterior.engine == engine
    tree = posterior.tree
    assert tree["posterior"]["inducing_value"].dims == ("chain", "draw", "inducing_point")
    assert list(tree["observed_data"]["bag"].to_numpy()) == list(bags.names)
    chains = 2 if posterior.is_mcmc else 1
    assert tree["posterior"].sizes["chain"] == chains
    assert ("sample_stats" in tree) == (engine == "nuts")


@pytest.mark.slow
@every_engine
def test_log_likelihood_is_computed_when_asked_for(posteriors, small_problem, engine):
    """By bag and draw; it is the same after a file, and the tree never has it."""
    model, bags = small_problem
    posterior = posteriors[engine]
    found = posterior.log_likelihood
    assert found.dims == ("chain", "draw", "bag") and found.name == "bag_label"
    assert list(found["bag"].to_numpy()) == list(bags.names)
    assert "log_likelihood" not in posterior.tree.children
    group = posterior.tree_with_log_likelihood()["log_likelihood"]
    np.testing.assert_array_equal(group["bag_label"], found)
    probability = model.predict(posterior.stored_draws(), bags)["bag_probability"]
    expected = np.where(bags.labels == 1, probability, 1 - probability)
    np.testing.assert_allclose(np.exp(found).to_numpy().reshape(expected.shape), expected)


@pytest.mark.slow
def test_draws_are_made_by_one_thread_of_blas(small_problem, monkeypatch):
    """Its idle threads would spin on the cores that the next prediction needs."""
    model, bags = small_problem
    num_threads, draws = [], InducingApproximation.draws

    def spied(self, *given):
        num_threads.extend(p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas")
        return draws(self, *given)

    monkeypatch.setattr(InducingApproximation, "draws", spied)
    with threadpool_limits(2, user_api="blas"):
        coordinate_ascent(model, bags, seed=0, max_steps=2, num_draws=10)
    assert num_threads and set(num_threads) == {1}


@pytest.mark.slow
def test_log_likelihood_survives_a_file(posteriors, tmp_path):
    posterior = posteriors["coordinate_ascent"]
    posterior.save(tmp_path / "posterior.nc")
    again = Posterior.load(tmp_path / "posterior.nc")
    xr.testing.assert_allclose(again.log_likelihood, posterior.log_likelihood)


def test_fits_compute_log_likelihoods_only_on_request(small_problem, monkeypatch):
    def refuse(*_):
        raise AssertionError("computed without being asked for")

    monkeypatch.setattr(posterior_module, "log_likelihood", refuse)
    monkeypatch.setattr(VGPMIL, "estimands_of", refuse)
    model, bags = small_problem
    found = coordinate_ascent(model, bags, seed=0)
    found.predict(bags)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@every_engine
def test_bags_survive_in_the_tree(posteriors, small_problem, engine):
    _, bags = small_problem
    again = posteriors[engine].bags
    for name in ("instances", "bag_index", "labels"):
        np.testing.assert_array_equal(getattr(again, name), getattr(bags, name))
    assert again.names == bags.names


@pytest.mark.slow_but_first
@every_engine
def test_file_loses_nothing(posteriors, small_problem, engine, tmp_path):
    _, bags = small_problem
    posterior = posteriors[engine]
    posterior.save(tmp_path / "posterior.nc")
    again = Posterior.load(tmp_path / "posterior.nc")
    xr.testing.assert_identical(posterior.tree, again.tree)
    for name in ("engine", "status", "seconds", "compile_seconds", "sampling_seconds"):
        assert getattr(posterior, name) == getattr(again, name)
    np.testing.assert_array_equal(posterior.model.inducing_points, again.model.inducing_points)
    assert repr(posterior.model) == repr(again.model)
    if posterior.elbo is None:
        assert again.elbo is None
    else:
        np.testing.assert_array_equal(posterior.elbo, again.elbo)
    for first, second in zip(
        posterior.draws(7, seed=3).values(), again.draws(7, seed=3).values(), strict=True
    ):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(
        posterior.predict(bags).bag_probability, again.predict(bags).bag_probability
    )


@pytest.mark.slow
def test_file_keeps_priors_and_scale_mixtures(small_problem, tmp_path):
    model, bags = small_problem
    kernel = replace(model.kernel, variance=dist.LogNormal(0.3, 0.7))
    open_model = replace(model, kernel=kernel, mean=dist.Normal(-1.0, 2.0))
    posterior = laplace(open_model, bags, seed=0, num_draws=5)
    posterior.save(tmp_path / "priors.nc")
    again = Posterior.load(tmp_path / "priors.nc").model
    assert isinstance(again.kernel.variance, dist.LogNormal)
    assert float(again.kernel.variance.scale) == pytest.approx(0.7)
    assert float(again.mean.loc) == -1.0
    gamma = coordinate_ascent(
        replace(model, scale_mixture=GammaScaleMixture(0.5, 2.5)), bags, seed=0
    )
    gamma.save(tmp_path / "gamma.nc")
    assert Posterior.load(tmp_path / "gamma.nc").model.scale_mixture == GammaScaleMixture(0.5, 2.5)


@pytest.mark.slow
def test_a_function_is_refused_by_save(small_problem, tmp_path):
    model, bags = small_problem
    custom = ScaleMixture.from_log_density(lambda f: -jnp.sqrt(1 + f**2))
    posterior = coordinate_ascent(replace(model, scale_mixture=custom), bags, seed=0, num_draws=5)
    with pytest.raises(ValueError, match="ScaleMixture made from a function"):
        posterior.save(tmp_path / "custom.nc")


def test_save_refuses_priors_beyond_their_parameters():
    with pytest.raises(
        ValueError, match=r"a prior is a LeftTruncatedDistribution; .* do not describe it fully"
    ):
        serialization.encode(dist.TruncatedNormal(3.0, 1.0, low=0.5))


def test_a_file_of_something_else_is_refused(tmp_path):
    xr.DataTree(xr.Dataset({"x": ("y", [1.0])})).to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match="no digest in its last line"):
        Posterior.load(tmp_path / "x.nc")


@pytest.mark.slow_but_first
@pytest.mark.parametrize("engine", APPROXIMATE)
def test_density_is_that_of_the_draws(posteriors, engine):
    # log q of draws of a Gaussian: mean −entropy, which a fit of the moments gives as well.
    posterior = posteriors[engine]
    draws = posterior.draws(20_000, seed=1)
    log_q = posterior.log_density(draws)
    values = draws["inducing_value"]
    fitted = stats.multivariate_normal(values.mean(axis=0), np.cov(values.T))
    error = log_q - fitted.logpdf(values)
    assert abs(error.mean()) < 0.01
    assert posterior.log_density({"inducing_value": values[:3]}) == pytest.approx(log_q[:3])


@pytest.mark.in_ci
def test_sampler_has_no_density_and_no_guide(posteriors):
    posterior = posteriors["nuts"]
    draws = posterior.draws(30, seed=0)
    assert posterior.log_density(draws) is None
    stored = posterior.stored_draws()["inducing_value"]
    assert all((stored == row).all(axis=1).any() for row in draws["inducing_value"])
    with pytest.raises(ValueError, match="posterior of nuts has no guide"):
        _ = posterior.guide


def test_intervals_hold_their_fraction_of_the_draws(posteriors, small_problem):
    _, bags = small_problem
    prediction = posteriors["nuts"].predict(bags)
    lower, upper = prediction.bag_interval(0.8)
    fraction = ((prediction.bag_draws >= lower) & (prediction.bag_draws <= upper)).mean()
    assert fraction == pytest.approx(0.8, abs=0.03)
    assert prediction.instance_interval(0.5).shape == (2, bags.num_instances)
    with pytest.raises(ValueError, match=r"mass is 1\.5"):
        prediction.bag_interval(1.5)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("engine", [coordinate_ascent, laplace, nuts, gibbs])
def test_duplicate_rows_and_constant_columns_just_work(engine):
    random = np.random.default_rng(0)
    instances = np.column_stack([random.normal(size=12), np.full(12, 3.0)])
    instances[6:] = instances[:6]
    bags = Bags.from_arrays(instances, np.repeat([0, 1, 2], 4), [1, 0, 1])
    short = {"num_warmup": 20, "num_samples": 20} if engine in (nuts, gibbs) else {}
    posterior = engine(VGPMIL.as_published(bags, num_inducing=6), bags, seed=0, **short)
    probability = posterior.predict(bags).instance_probability
    np.testing.assert_allclose(probability[6:], probability[:6], rtol=1e-9)


def test_bags_of_another_width_are_named(posteriors):
    narrow = Bags.from_list([np.zeros((2, 1))])
    with pytest.raises(ValueError, match=r"bags have 1 features.*have 2"):
        posteriors["nuts"].predict(narrow)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@every_engine
def test_same_seed_gives_same_draws_without_global_flags(small_problem, engine):
    model, bags = small_problem
    settings = {
        "coordinate_ascent": (coordinate_ascent, {"label_update": "mean_field", "max_steps": 3}),
        "laplace": (laplace, {"num_draws": 5}),
        "svi": (svi, {"max_steps": 100, "num_draws": 5}),
        "nuts": (nuts, {"num_warmup": 20, "num_samples": 5, "num_chains": 1}),
        "gibbs": (gibbs, {"num_warmup": 5, "num_samples": 5, "num_chains": 1}),
    }
    function, arguments = settings[engine]
    first, same, other = (
        function(model, bags, seed=seed, **arguments).stored_draws()["inducing_value"]
        for seed in (4, jax.random.key(4), 5)
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()
    assert first.dtype == np.float64
    assert not jax.config.jax_enable_x64


@pytest.mark.slow
def test_constant_sites_have_no_rhat_and_no_warning():
    """As the probability of an instance that no labelling leaves a choice."""
    random = np.random.default_rng(0)
    moving, still = random.normal(size=(2, 200, 1)), np.full((2, 200, 1), 0.1)
    tree = az.from_dict({"posterior": {"moving": moving, "still": still}})
    alone, both = (_mixed(tree, names) for names in (("moving",), ("moving", "still")))
    assert both == alone and both.kind == "converged"
