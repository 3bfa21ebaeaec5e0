# %% [markdown]
# # 10. Bring your own model
#
# This notebook adds a model from outside, without a change to the package. A model is a
# probabilistic program and a few names. With these you get every engine that works by gradients,
# the comparison of engines, the calibration by simulation, and the plots. With closed-form
# updates you also get `coordinate_ascent`, `natural_gradient` and streams, and a test that tells
# whether the updates are right.
#
#     python examples/10_bring_your_own_model.py [--toy]

# %% [markdown]
# **You will learn**
#
# - how to write a model as a program that all engines can run,
# - how to derive and register closed-form updates,
# - how to test a formula for a bound with code that has never seen it.

# %%
# %matplotlib inline
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jax.scipy.linalg import cho_solve, solve_triangular
from milzoo.datasets import Bags, simulate, simulate_instances, stream
from milzoo.diagnostics import compare, plot_with_slider, simulation_calibration
from milzoo.inference import (
    Posterior,
    coordinate_ascent,
    grid,
    keep_programs,
    laplace,
    natural_gradient,
    nuts,
    serialization,
    svi,
)
from milzoo.inference.closed_form import ClosedForm, Options, closed_form
from milzoo.models.model import Model, ModelDefaults, given_labels, plate_of_bags
from milzoo.models.numerics.tracing import as_pytree
from milzoo.models.parts.polya_gamma import PolyaGamma
from numpyro.infer import Trace_ELBO
from scipy.special import expit
from scipy.stats import norm

keep_programs()

IS_TOY = "--toy" in sys.argv

# %% [markdown]
# ## The model
#
# The label of a bag depends on the mean $\bar x_b$ of its instances,
#
# $$w \sim N(0, s^2 I), \qquad T_b \sim \mathrm{Bernoulli}\big(\sigma(w^\top \bar x_b)\big)$$
#
# It is a plain model, and a common first try. The *program* generates data: `numpyro.sample` draws,
# or takes a given value. `augmented()` is the same with one more random variable for each bag,
# $\omega_b \sim \mathrm{PG}(1, |w^\top \bar x_b|)$. The closed form will need it.


# %%
def bag_means(bags):
    """The mean of the instances of each bag, (B, D)."""
    index = jnp.asarray(bags.bag_index)
    total = jax.ops.segment_sum(jnp.asarray(bags.instances), index, bags.num_bags)
    size = jax.ops.segment_sum(jnp.ones(len(index)), index, bags.num_bags)
    return total / jnp.maximum(size, 1.0)[:, None]


@serialization.register
@as_pytree()
@dataclass(frozen=True, eq=False)
class MeanLogistic(ModelDefaults):
    """Logistic regression on the mean of the instances of a bag."""

    scale: float = 1.0  # s

    name: ClassVar = "mean_logistic"
    dims: ClassVar = {"weights": ("feature",), "augmentation": ("bag",), "bag_label": ("bag",)}
    latent_sites: ClassVar = ("weights",)

    def __call__(self, bags):
        self._observe(self._draw_latent(bags), bags)

    def marginal(self):
        return self

    def augmented(self):
        return self._augmented_program

    def _augmented_program(self, bags):
        latent = self._draw_latent(bags)
        with plate_of_bags(bags):
            numpyro.sample("augmentation", PolyaGamma(1, latent))
        self._observe(latent, bags)

    def _draw_latent(self, bags):
        prior = dist.Normal(0.0, self.scale).expand([bags.num_features]).to_event(1)
        return bag_means(bags) @ numpyro.sample("weights", prior)

    def _observe(self, latent, bags):
        with plate_of_bags(bags):
            numpyro.sample("bag_label", dist.Bernoulli(logits=latent), obs=given_labels(bags))

    def predict(self, draws, bags):
        with jax.enable_x64(True):
            means = np.asarray(bag_means(bags))
        return {
            "bag_probability": expit(draws["weights"] @ means.T),
            # Of a bag with this instance alone: the model has no label of an instance.
            "instance_probability": expit(draws["weights"] @ bags.instances.T),
        }


# %% [markdown]
# The less obvious names:
#
# | name | meaning | here |
# |---|---|---|
# | `latent_sites` | the sites of the posterior | $w$ |
# | `dims` | the axes of each site, for tables and plots | by feature, by bag |
# | `marginal` | the program with all sums and integrals done that can be | itself |
# | `as_pytree` | compiled programs take the model as an argument | with its scale |
# | `plate_of_bags` | masks absent bags, which fill arrays to a size | by bag |
#
# `ModelDefaults` has the rest that engines and diagnostics need. A model overrides a default that
# does not hold:
#
# | name | meaning | the default |
# |---|---|---|
# | `observed_site` | the site of the data | the labels |
# | `priors` | hyper-parameters that are inferred too | none |
# | `estimands`, `estimands_of` | quantities to compare if sites have no fixed meaning | none |
# | `reparametrisation` | how samplers whiten the sites | no need |
# | `complete` | draws the sites that `marginal` summed out | no sites |

# %%
assert isinstance(MeanLogistic(), Model)
assert not MeanLogistic().priors and not MeanLogistic().estimands

# %% [markdown]
# ## Data, from the model itself
#
# `simulate` draws the weights from the prior and labels from the weights. So the truth is known.

# %%
model = MeanLogistic(scale=4.0)
design = simulate_instances(40, range(1, 6), num_features=2, seed=1)
bags, truth = simulate(model, design, seed=2)
print(f"{bags.num_bags} bags, {bags.labels.mean():.0%} positive; w = {truth['weights'].round(2)}")

# %% [markdown]
# ## What comes for free
#
# The No-U-Turn sampler, Laplace's approximation and stochastic variational inference need the
# gradient of the log density, and JAX derives it from the program. With two weights a grid also
# gives the posterior, exactly.

# %%
posteriors = {
    "nuts": nuts(model, bags, seed=0, num_warmup=300, num_samples=1000),
    "laplace": laplace(model, bags, seed=0),
}
if not IS_TOY:
    posteriors["svi"] = svi(model, bags, seed=0, max_steps=2000)
    posteriors["grid"] = grid(model, bags, seed=0, num_points=101)
for name, posterior in posteriors.items():
    print(f"{name}: {posterior.status.sentence}")
    assert posterior.status.kind == "converged"

# %% [markdown]
# ## Updates in closed form
#
# Given $\omega$ the likelihood is Gaussian in $w$ (notebook 2). So look for
# $q(w)\, q(\omega)$ with $q(w) = N(m, S)$ and $q(\omega_b) = \mathrm{PG}(1, \xi_b)$, which makes
# the evidence lower bound as high as it gets. Each factor has its best value given the other:
#
# $$S^{-1} = s^{-2} I + \sum_b \theta(\xi_b)\, \bar x_b \bar x_b^\top, \qquad
# m = S \sum_b (T_b - \tfrac12)\, \bar x_b, \qquad
# \xi_b^2 = \mathrm{E}_q (w^\top \bar x_b)^2$$
#
# with $\theta(\xi) = \tanh(\xi/2)/2\xi$, the mean of $\mathrm{PG}(1, \xi)$. The bound, at these
# $\xi$, is
#
# $$\sum_b \big[(T_b - \tfrac12)\, m^\top \bar x_b - \log 2\cosh(\xi_b/2)\big]
# - \mathrm{KL}\big(N(m, S)\,\|\,N(0, s^2 I)\big)$$
#
# Both depend on the bags by three totals: $\sum \theta(\xi_b)\, \bar x_b \bar x_b^\top$,
# $\sum (T_b - \frac12)\, \bar x_b$ and the sum in brackets. They are the *expected sufficient
# statistics*. In code, `prepare` computes the constants of some bags, `e_step` the statistics under
# $q(w)$, `m_step` the $q(w)$ of the statistics, and `elbo` the bound. `ClosedForm` has defaults for
# the rest.


# %%
class Rows(NamedTuple):
    means: jax.Array  # of the instances, by bag
    half_sign: jax.Array  # T − ½
    weight: jax.Array  # 1, or 0 of an absent bag


class Factor(NamedTuple):
    mean: jax.Array  # m
    root: jax.Array  # R, lower triangular with RRᵀ = S⁻¹


class Statistics(NamedTuple):
    gram: jax.Array
    linear_term: jax.Array
    log_likelihood: jax.Array


@as_pytree("num_features")
@dataclass(frozen=True)
class MeanLogisticForm(ClosedForm):
    num_features: int

    def start(self, subsample, key):
        identity = np.eye(self.num_features)
        return Factor(np.zeros(self.num_features), identity / self.model.scale)

    def prepare(self, bags):
        is_there = np.ones(bags.num_bags) if bags.present is None else bags.present
        weight = jnp.asarray(is_there, float)
        return Rows(bag_means(bags), jnp.asarray(bags.labels) - 0.5, weight)

    def e_step(self, rows, q, local):
        location, tilt = tilts(rows, q)
        theta = rows.weight * PolyaGamma(1, tilt).mean
        by_bag = rows.half_sign * location - jnp.logaddexp(tilt / 2, -tilt / 2)
        statistics = Statistics(
            (rows.means.T * theta) @ rows.means,
            (rows.weight * rows.half_sign) @ rows.means,
            rows.weight @ by_bag,
        )
        return statistics, None

    def m_step(self, statistics):
        precision = jnp.eye(self.num_features) / self.model.scale**2 + statistics.gram
        root = jnp.linalg.cholesky(precision)
        return Factor(cho_solve((root, True), statistics.linear_term), root)

    def elbo(self, q, statistics):
        scale, identity = self.model.scale, jnp.eye(self.num_features)
        trace = jnp.sum(solve_triangular(q.root, identity, lower=True) ** 2)  # tr S
        divergence = 0.5 * ((trace + q.mean @ q.mean) / scale**2 - self.num_features)
        divergence += jnp.sum(jnp.log(scale * jnp.diagonal(q.root)))
        return statistics.log_likelihood - divergence

    def no_statistics(self):
        size = self.num_features
        return Statistics(np.zeros((size, size)), np.zeros(size), np.zeros(()))

    def draw(self, q, key, num_draws):
        noise = jax.random.normal(key, (self.num_features, num_draws))
        weights = q.mean[:, None] + solve_triangular(q.root.T, noise, lower=False)
        return {"weights": weights.T}

    def approximation(self, q, local, bags, elbo):
        inverse_root = solve_triangular(q.root, jnp.eye(self.num_features), lower=True)  # R⁻¹
        tril = np.asarray(jnp.linalg.cholesky(inverse_root.T @ inverse_root))  # S = R⁻ᵀR⁻¹
        return MeanLogisticApproximation(np.asarray(q.mean), tril)

    def guide(self, approximation):
        return approximation.guide(self.model)


def tilts(rows, q):
    """The mean of wᵀx̄ under q, and ξ."""
    location = rows.means @ q.mean
    variance = jnp.sum(solve_triangular(q.root, rows.means.T, lower=True) ** 2, axis=0)
    return location, jnp.sqrt(location**2 + variance)


# %% [markdown]
# ## The approximation
#
# An approximation can be drawn from, has a density, and is a *guide*: a program of $q$, with the
# sites of `augmented()` that are not observed. The tilts of $q(\omega)$ follow from $q(w)$.


# %%
@serialization.register
@dataclass(frozen=True, eq=False)
class MeanLogisticApproximation:
    mean: np.ndarray
    scale_tril: np.ndarray  # lower triangular root of S

    def distribution(self):
        return dist.MultivariateNormal(
            jnp.asarray(self.mean), scale_tril=jnp.asarray(self.scale_tril)
        )

    def draws(self, model, bags, key, num_draws):
        with jax.enable_x64(True):
            return {"weights": np.asarray(self.distribution().sample(key, (num_draws,)))}

    def log_density(self, model, bags, draws):
        with jax.enable_x64(True):
            return np.asarray(self.distribution().log_prob(jnp.asarray(draws["weights"])))

    def guide(self, model):
        def program(bags):
            numpyro.sample("weights", self.distribution())
            means = bag_means(bags)
            variance = jnp.sum((means @ self.scale_tril) ** 2, axis=1)
            tilt = jnp.sqrt((means @ self.mean) ** 2 + variance)
            with plate_of_bags(bags):
                numpyro.sample("augmentation", PolyaGamma(1, tilt))

        return program


# %% [markdown]
# ## One line registers it
#
# `coordinate_ascent` looks for the closed form of the model's class. Until one is registered it
# refuses.

# %%
try:
    coordinate_ascent(model, bags, seed=0)
except NotImplementedError as refusal:
    print(refusal)


@closed_form.register
def of_mean_logistic(model: MeanLogistic, options: Options) -> ClosedForm:
    return MeanLogisticForm(model, num_features=design.num_features)


posteriors["closed form"] = coordinate_ascent(model, bags, seed=0)
print(posteriors["closed form"].status.sentence)

# %% [markdown]
# Statistics of parts of the bags add up. So the same class also works for bags in chunks from a
# file, and for one step per batch. All three end at the same $q(w)$.

# %%
with tempfile.TemporaryDirectory() as folder:
    bags.to_parquet(Path(folder) / "bags.parquet")
    streamed = coordinate_ascent(model, stream(folder, chunk_instances=50), seed=0)
batches = natural_gradient(model, bags, seed=0, max_steps=100, batch_instances=40)
print(batches.status.sentence)
mean = posteriors["closed form"].approximation.mean
posterior_sd = np.sqrt(np.sum(posteriors["closed form"].approximation.scale_tril ** 2, axis=1))
print(f"in memory {mean}, from a file {streamed.approximation.mean}")
print(f"by batches {batches.approximation.mean}, sd {posterior_sd}")
np.testing.assert_allclose(streamed.approximation.mean, mean, rtol=1e-6)
assert (abs(batches.approximation.mean - mean) < posterior_sd).all()

# %% [markdown]
# ## Is it right?
#
# Formulas for bounds are easily wrong by a constant or a factor that no figure shows. Two tests
# find the error. The bound of a coordinate ascent never falls. And the bound is the mean, over
# draws of $q$, of the log density of the program less that of the guide. NumPyro's `Trace_ELBO`
# estimates it from these two programs, without our formula.

# %%
bound = posteriors["closed form"].elbo
assert (np.diff(bound) > -1e-9 * np.abs(bound[1:])).all()


def estimates(posterior, num_draws):
    """One-draw estimates of the bound by NumPyro."""
    program, guide, one = posterior.model.augmented(), posterior.guide, Trace_ELBO(1).loss
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), num_draws)
        loss = jax.jit(jax.vmap(lambda key: one(key, {}, program, guide, bags)))
        return -np.asarray(loss(keys))


estimated = estimates(posteriors["closed form"], 4000)
error = estimated.std(ddof=1) / np.sqrt(estimated.size)
print(f"our formula {bound[-1]:.3f}, by draws {estimated.mean():.3f} ± {error:.3f}")
assert abs(estimated.mean() - bound[-1]) < 4.5 * error

# %% [markdown]
# A good test can fail. Suppose that we forget the scale of the prior, and leave $\log s$ out of the
# divergence. The bound would still rise, but the test finds the error:

# %%
forgotten = bound[-1] + bags.num_features * np.log(model.scale)
standard_errors = (forgotten - estimated.mean()) / error
print(f"without log s: {forgotten:.3f}, an error of {standard_errors:.0f} standard errors")
assert abs(forgotten - estimated.mean()) > 4.5 * error
if not IS_TOY:
    print(f"log evidence by the grid: {posteriors['grid'].elbo[-1]:.3f}")
    assert bound[-1] < posteriors["grid"].elbo[-1]

# %% [markdown]
# ## Side by side
#
# Errors are in posterior sds, against the grid, which is exact (with `--toy` against the sampler).

# %%
comparison = compare(posteriors, num_draws=2000)
columns = ["status", "seconds", "compile_seconds", "khat", "mean_error", "error_mcse", "sd_ratio"]
table = comparison.table[columns]
table.round(3)

# %%
for sentence in comparison.sentences.values():
    print("-", sentence)
assert comparison.reference == ("nuts" if IS_TOY else "grid")
assert table.loc["closed form", "sd_ratio"] < 0.9
if not IS_TOY:
    assert table.loc["nuts", "mean_error"] < 4 * table.loc["nuts", "error_mcse"]
comparison.plot_forest()

# %% [markdown]
# The means nearly agree. The tests show that the updates are right, and yet their posterior is too
# narrow: the factorisation $q(w)\, q(\omega)$ costs width. By how much depends on the prior. Move
# its scale $s$. A grid over both weights gives the exact density of the first weight.

# %%
axis = np.linspace(-12.0, 24.0, 145)
first, second = np.meshgrid(axis, axis, indexing="ij")
with jax.enable_x64(True):
    means = np.asarray(bag_means(bags))
logits = first[..., None] * means[:, 0] + second[..., None] * means[:, 1]
log_likelihood = np.sum(bags.labels * logits - np.logaddexp(0, logits), axis=-1)


def densities(scale):
    """The exact density of the first weight, and that of the closed form."""
    joint = log_likelihood - (first**2 + second**2) / (2 * scale**2)
    exact = np.exp(joint - joint.max()).sum(axis=1)
    fitted = coordinate_ascent(MeanLogistic(scale), bags, seed=0).approximation
    curves = {
        "exact": exact / exact.sum() / (axis[1] - axis[0]),
        "closed form": norm.pdf(axis, fitted.mean[0], fitted.scale_tril[0, 0]),
    }
    return [
        pd.DataFrame({"first weight": axis, "density": curve, "posterior": name, "s": scale})
        for name, curve in curves.items()
    ]


frames = pd.concat([frame for scale in (0.5, 1.0, 2.0, 4.0, 8.0) for frame in densities(scale)])


def sd(rows):
    mean = np.average(rows["first weight"], weights=rows["density"])
    return np.sqrt(np.average((rows["first weight"] - mean) ** 2, weights=rows["density"]))


sds = frames.groupby(["s", "posterior"])[["first weight", "density"]].apply(sd).unstack()
ratio = sds["closed form"] / sds["exact"]
print(ratio.round(2).to_string())
assert (np.diff(ratio) < 0).all() and ratio[0.5] > 0.9 > 0.7 > ratio[8.0]
plot_with_slider(frames, x="first weight", y="density", slider="s", colour="posterior", start=4.0)

# %% [markdown]
# Under a narrow prior both densities are nearly the prior. Under a wide prior the labels decide:
# the exact density has a long right tail, and the closed form has none.
#
# ## On other data?
#
# One data set may be an exception. `simulation_calibration` draws hundreds of data sets from the
# model, fits each, and ranks the truth among the draws. It compiles an engine once for all of them.

# %%
found = {
    "closed form": simulation_calibration(
        model, "coordinate_ascent", design, seed=3, simulations=300 if IS_TOY else 1000
    )
}
if not IS_TOY:
    found["nuts"] = simulation_calibration(
        model, "nuts", design, seed=3, simulations=500, num_warmup=200, thin=3
    )
for one in found.values():
    print(*one.sentences, sep="\n")
deviation = found["closed form"].table.loc[["weights 0", "weights 1"], "rms_deviation"]
assert not found["closed form"].is_calibrated and (deviation > 1.2).all()
assert found["closed form"].has_converged.all()
if not IS_TOY:
    assert found["nuts"].is_calibrated
found["closed form"].plot()

# %% [markdown]
# The lines of the closed form leave the grey band, and those of the sampler do not. The sds are too
# small on average, not in this one data set alone.
#
# ## New bags, and a file
#
# Predictions are the model's own, averaged over draws; new bags come from the same weights. The
# decorator `serialization.register` is why a file with a posterior of this model can be read again.

# %%
new_bags = simulate_instances(400, range(1, 6), num_features=2, seed=4)
probability = posteriors["nuts"].predict(new_bags).bag_probability
with jax.enable_x64(True):
    true_probability = expit(np.asarray(bag_means(new_bags)) @ truth["weights"])
error = np.abs(probability - true_probability).mean()
error_of_constant = np.abs(bags.labels.mean() - true_probability).mean()
print(f"mean error of the probabilities of new bags: {error:.3f}")
print(f"mean error of the fraction of positive bags: {error_of_constant:.3f}")
assert error < 0.5 * error_of_constant
with tempfile.TemporaryDirectory() as folder:
    posteriors["closed form"].save(Path(folder) / "posterior.nc")
    again = Posterior.load(Path(folder) / "posterior.nc")
assert isinstance(again.model, MeanLogistic)
np.testing.assert_array_equal(
    again.approximation.mean, posteriors["closed form"].approximation.mean
)

# %% [markdown]
# A program and its names, a few pure functions, a guide, and one line that registers them: this is
# all. If the model is useful to others, the README says where each part stands in the package.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let the prior scale $s$ go to 0. What are the probabilities of bags, and the ELBO?

# %% tags=["hide-cell"]
without_weights = coordinate_ascent(MeanLogistic(scale=1e-4), bags, seed=0)
# All weights are 0: each bag is a coin, and the bound is tight.
np.testing.assert_allclose(without_weights.predict(bags).bag_probability, 0.5, atol=1e-3)
np.testing.assert_allclose(without_weights.elbo[-1], bags.num_bags * np.log(0.5), atol=1e-3)

# %% [markdown]
# **Exercise 2.** Every instance stands twice in its bag. What happens to the posterior? And what
# happens if every bag stands twice in the data?

# %% tags=["hide-cell"]
instances, index = bags.instances, np.asarray(bags.bag_index)
twice_in_bag = Bags.from_arrays(np.repeat(instances, 2, 0), np.repeat(index, 2), bags.labels)
twice_in_data = Bags.from_arrays(
    np.tile(instances, (2, 1)),
    np.append(index, index + bags.num_bags),
    np.tile(bags.labels, 2),
)
once, same, narrower = (
    coordinate_ascent(model, data, seed=0).approximation
    for data in (bags, twice_in_bag, twice_in_data)
)
# The mean of a bag is the same; two copies of a bag count as two observations.
np.testing.assert_allclose(same.mean, once.mean, rtol=1e-6)
assert (np.diagonal(narrower.scale_tril) < np.diagonal(once.scale_tril)).all()

# %% [markdown]
# **Exercise 3.** The test above needs 4.5 standard errors to reject a formula. How many draws does
# it need to find an error of 0.1 nats?

# %% tags=["hide-cell"]
needed = (4.5 * estimated.std(ddof=1) / 0.1) ** 2
print(f"{needed:,.0f} draws; the test above has {estimated.size:,}")
assert needed < estimated.size
