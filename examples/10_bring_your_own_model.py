# %% [markdown]
# # 10. Bring your own model
#
# None of the models here is yours. This notebook adds one from outside, without a change to the
# package, and shows what a model has to say of itself: a probabilistic program and a dozen names or
# so. Whoever writes that gets every engine that works by gradients, the comparison of engines, the
# calibration by simulation, and the pictures. Whoever adds closed-form updates gets a test that
# tells whether they are right.
#
#     python examples/10_bring_your_own_model.py [--toy]

# %%
# %matplotlib inline
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import cho_solve, solve_triangular
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import compare, simulation_calibration
from milzoo.inference import Posterior, archive, coordinate_ascent, grid, laplace, nuts, svi
from milzoo.inference.closed_form.ascent import ascend, ascend_inside
from milzoo.inference.inside import DrawsInside
from milzoo.inference.posterior import approximate_posterior
from milzoo.models.distributions import PolyaGamma
from milzoo.models.model import Model, ModelDefaults, given_labels
from numpyro.infer import Trace_ELBO
from scipy.special import expit

IS_TOY = "--toy" in sys.argv

# %% [markdown]
# ## The model
#
# A bag is what its instances are on average. With $\bar x_b$ the mean of the instances of bag $b$,
#
# $$w \sim N(0, s^2 I), \qquad T_b \sim \mathrm{Bernoulli}\big(\sigma(w^\top \bar x_b)\big)$$
#
# It is a plain model, and a common first try. As a *program* it says how data would come about:
# `numpyro.sample` draws, or takes what is given. `augmented()` is the same with one more random
# variable for each bag, $\omega_b \sim \mathrm{PG}(1, |w^\top \bar x_b|)$, whose use comes later.


# %%
def bag_means(bags):
    """The mean of the instances of each bag, (B, D)."""
    index = jnp.asarray(bags.bag_index)
    sums = jax.ops.segment_sum(jnp.asarray(bags.instances), index, bags.num_bags)
    return sums / jnp.asarray(bags.bag_sizes)[:, None]


@archive.register
@dataclass(frozen=True, eq=False)
class MeanLogistic(ModelDefaults):
    """Logistic regression on the mean of the instances of a bag."""

    scale: float = 1.0  # s

    name: ClassVar = "mean_logistic"
    dims: ClassVar = {"weights": ("feature",), "augmentation": ("bag",), "bag_label": ("bag",)}
    latent_sites: ClassVar = ("weights",)

    def __call__(self, bags):
        self._observe(self._draw_evidence(bags), bags)

    def marginal(self):
        return self

    def augmented(self):
        return self._augmented_program

    def _augmented_program(self, bags):
        evidence = self._draw_evidence(bags)
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample("augmentation", PolyaGamma(1, evidence))
        self._observe(evidence, bags)

    def _draw_evidence(self, bags):
        prior = dist.Normal(0.0, self.scale).expand([bags.num_features]).to_event(1)
        return bag_means(bags) @ numpyro.sample("weights", prior)

    def _observe(self, evidence, bags):
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample("bag_label", dist.Bernoulli(logits=evidence), obs=given_labels(bags))

    def predict(self, draws, bags):
        with jax.enable_x64(True):
            means = np.asarray(bag_means(bags))
        return {
            "bag_probability": expit(draws["weights"] @ means.T),
            # Of a bag that holds the instance alone: this model has no other word on instances.
            "instance_probability": expit(draws["weights"] @ bags.instances.T),
        }


# %% [markdown]
# What are the less obvious names for?
#
# | name | what it says | here |
# |---|---|---|
# | `latent_sites` | the sites that a posterior is about | $w$ |
# | `dims` | the axes of each site, for tables and pictures | by feature, by bag |
# | `marginal` | the program with all summed out that can be | itself |
#
# `ModelDefaults` answers everything else that engines and diagnostics ask. A model overrides an
# answer that does not hold:
#
# | name | what it says | the default |
# |---|---|---|
# | `observed_site` | the site of the data | the labels |
# | `priors` | hyper-parameters that are inferred as well | none |
# | `estimands`, `estimands_of` | quantities to compare if sites have no fixed meaning | none |
# | `reparametrisation` | how samplers should whiten the sites | no need |
# | `complete` | draws back what `marginal` summed out | nothing was |

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
# gradient of the log density, which is derived from the program. With two weights the posterior can
# be summed up on a grid as well, which is exact.

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
# As code: what stays fixed (a *problem*), what moves (a *state*), and three pure functions.


# %%
class Problem(NamedTuple):
    means: jax.Array  # of the instances, by bag
    half_sign: jax.Array  # T − ½
    scale: jax.Array  # s


class State(NamedTuple):
    mean: jax.Array  # m
    root: jax.Array  # R, lower triangular with RRᵀ = S⁻¹
    tilt: jax.Array  # ξ


def with_tilt(problem, mean, root):
    variance = jnp.sum(solve_triangular(root, problem.means.T, lower=True) ** 2, axis=0)
    return State(mean, root, jnp.sqrt((problem.means @ mean) ** 2 + variance))


def init(model, bags):
    problem = Problem(bag_means(bags), jnp.asarray(bags.labels) - 0.5, jnp.asarray(model.scale))
    identity = jnp.eye(bags.num_features)
    return problem, with_tilt(problem, jnp.zeros(bags.num_features), identity / model.scale)


def step(problem, state):
    weighted = problem.means.T * PolyaGamma(1, state.tilt).mean
    precision = jnp.eye(len(state.mean)) / problem.scale**2 + weighted @ problem.means
    root = jnp.linalg.cholesky(precision)
    return with_tilt(problem, cho_solve((root, True), problem.half_sign @ problem.means), root)


def elbo(problem, state):
    identity = jnp.eye(len(state.mean))
    trace = jnp.sum(solve_triangular(state.root, identity, lower=True) ** 2)  # tr S
    divergence = 0.5 * ((trace + state.mean @ state.mean) / problem.scale**2 - len(state.mean))
    divergence += jnp.sum(jnp.log(problem.scale * jnp.diagonal(state.root)))
    of_labels = problem.half_sign * (problem.means @ state.mean)
    return jnp.sum(of_labels - jnp.logaddexp(state.tilt / 2, -state.tilt / 2)) - divergence


# %% [markdown]
# ## The law that it leaves behind
#
# An approximation can be drawn from, has a density, and is a *guide*: a program of $q$, with the
# sites of `augmented()` that are not observed.


# %%
@archive.register
@dataclass(frozen=True, eq=False)
class MeanLogisticApproximation:
    mean: np.ndarray
    scale_tril: np.ndarray  # lower triangular root of S
    tilt: np.ndarray

    def law(self):
        return dist.MultivariateNormal(
            jnp.asarray(self.mean), scale_tril=jnp.asarray(self.scale_tril)
        )

    def draws(self, model, bags, key, num_draws):
        with jax.enable_x64(True):
            return {"weights": np.asarray(self.law().sample(key, (num_draws,)))}

    def log_density(self, model, bags, draws):
        with jax.enable_x64(True):
            return np.asarray(self.law().log_prob(jnp.asarray(draws["weights"])))

    def guide(self, model):
        def program(bags):
            numpyro.sample("weights", self.law())
            with numpyro.plate("bag", bags.num_bags):
                numpyro.sample("augmentation", PolyaGamma(1, jnp.asarray(self.tilt)))

        return program


def approximation(state):
    inverse_root = solve_triangular(state.root, jnp.eye(len(state.mean)), lower=True)  # R⁻¹
    tril = np.asarray(jnp.linalg.cholesky(inverse_root.T @ inverse_root))  # S = R⁻ᵀR⁻¹
    return MeanLogisticApproximation(np.asarray(state.mean), tril, np.asarray(state.tilt))


# %% [markdown]
# ## An engine
#
# `coordinate_ascent` looks up the updates by the class of the model, and knows those that come with
# the package. But its loop (`ascend`) may be used by anybody, and so may what wraps up a result
# (`approximate_posterior`). Together they are an engine for the new model.


# %%
def closed_form(model, bags, *, seed, max_steps=1000):
    with jax.enable_x64(True):
        problem, state = init(model, bags)
        ascent = ascend(
            step,
            elbo,
            problem,
            state,
            max_steps=max_steps,
            tolerance=1e-8,
            is_ascent=True,
            progress=False,
        )
        law = approximation(ascent.state)
    return approximate_posterior(
        model,
        bags,
        law,
        engine="closed form",
        key=jax.random.key(seed),
        num_draws=1000,
        status=ascent.status,
        seconds=ascent.seconds,
        compile_seconds=ascent.compile_seconds,
        elbo=ascent.elbo,
    )


try:
    coordinate_ascent(model, bags, seed=0)
except NotImplementedError as refusal:
    print(refusal)
posteriors["closed form"] = closed_form(model, bags, seed=0)
print(posteriors["closed form"].status.sentence)

# %% [markdown]
# ## Is it right?
#
# Formulas for bounds are easily wrong by a constant or a factor that no picture shows. Two tests
# find that out. A coordinate ascent never falls. And the bound is the mean, over draws of $q$, of
# the log density of the program less that of the guide. NumPyro's `Trace_ELBO` estimates it from
# these two programs; it has never seen our formula.

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
# A test is worth something if it can fail. Somebody might forget that the prior has a scale, and
# leave $\log s$ out of the divergence. The ascent would rise just as well, but the test sees it:

# %%
forgotten = bound[-1] + bags.num_features * np.log(model.scale)
print(f"without log s: {forgotten:.3f}, off by {(forgotten - estimated.mean()) / error:.0f} errors")
assert abs(forgotten - estimated.mean()) > 4.5 * error
if not IS_TOY:
    print(f"log evidence by the grid: {posteriors['grid'].elbo[-1]:.3f}")
    assert bound[-1] < posteriors["grid"].elbo[-1]

# %% [markdown]
# ## Side by side
#
# Errors are measured in posterior sds, against the sampler.

# %%
comparison = compare(posteriors, num_draws=2000)
columns = ["status", "seconds", "compile_seconds", "khat", "mean_error", "error_mcse", "sd_ratio"]
table = comparison.table[columns]
table.round(3)

# %%
for sentence in comparison.sentences.values():
    print("-", sentence)
assert comparison.reference == "nuts"
assert table.loc["closed form", "sd_ratio"] < 0.9
if not IS_TOY:
    assert table.loc["grid", "mean_error"] < 4 * table.loc["grid", "error_mcse"]
comparison.plot_forest()

# %% [markdown]
# All are about the same place. The updates are right, as we know by now, and yet their posterior is
# too narrow: that is what $q(w)\, q(\omega)$ costs.

# %% [markdown]
# ## On other data?
#
# One data set may be an exception. `simulation_calibration` draws hundreds of them from the model,
# fits each, and looks where the truth lies among the draws. To be compiled once for all of them, an
# engine says how to make draws by pure functions; `nuts` can do that for every model.


# %%
@dataclass(frozen=True)
class ClosedFormInside:
    are_independent: ClassVar = True
    max_steps: int = 500

    def check(self, model, bags):
        init(model, bags)

    def draws(self, model, bags, key, num_draws):
        problem, state = init(model, bags)
        update, bound = partial(step, problem), partial(elbo, problem)
        end, _, steps = ascend_inside(
            update, bound, state, max_steps=self.max_steps, tolerance=1e-8
        )
        noise = jax.random.normal(key, (len(end.mean), num_draws))
        weights = end.mean[:, None] + solve_triangular(end.root.T, noise, lower=False)
        return DrawsInside({"weights": weights.T}, steps < self.max_steps)


found = {
    "closed form": simulation_calibration(
        model, ClosedFormInside(), design, seed=3, simulations=300 if IS_TOY else 1000
    )
}
if not IS_TOY:
    found["nuts"] = simulation_calibration(
        model, "nuts", design, seed=3, simulations=500, num_warmup=200, thin=3
    )
for one in found.values():
    print(*one.sentences, sep="\n")
spread = found["closed form"].table.loc[["weights 0", "weights 1"], "spread"]
assert not found["closed form"].is_calibrated and (spread > 1.2).all()
assert found["closed form"].is_settled.all()
if not IS_TOY:
    assert found["nuts"].is_calibrated
found["closed form"].plot()

# %% [markdown]
# The lines of the closed form leave the grey band, and against the sampler nothing is found. The
# sds are too small on average, not in this one data set alone.
#
# ## New bags, and a file
#
# Predictions are the model's own, averaged over draws; new bags come from the same weights. The
# decorator `archive.register` is why a file with a posterior of this model can be read again.

# %%
new_bags = simulate_instances(400, range(1, 6), num_features=2, seed=4)
probability = posteriors["nuts"].predict(new_bags).bag_probability
with jax.enable_x64(True):
    true_probability = expit(np.asarray(bag_means(new_bags)) @ truth["weights"])
off = np.abs(probability - true_probability).mean()
off_by_share = np.abs(bags.labels.mean() - true_probability).mean()
print(f"probabilities of new bags are {off:.3f} off on average")
print(f"for who knows the share of positive bags alone, {off_by_share:.3f}")
assert off < 0.5 * off_by_share
with tempfile.TemporaryDirectory() as folder:
    posteriors["closed form"].save(Path(folder) / "posterior.nc")
    again = Posterior.load(Path(folder) / "posterior.nc")
assert isinstance(again.model, MeanLogistic)
np.testing.assert_array_equal(
    again.approximation.mean, posteriors["closed form"].approximation.mean
)

# %% [markdown]
# A program and its names; three functions and a guide; an engine of a page. If the model is useful
# to others, the README says where each of these parts stands in the package.
