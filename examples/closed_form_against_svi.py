# %% [markdown]
# # Closed-form updates against stochastic gradients
#
# Kandemir et al. (2016), section 4.3 and Figure 2: how many passes over the data does variational
# inference need, with updates that have no learning rate, and with stochastic gradients that do?
# Two likelihoods on musk1, each with its closed form and with SVI on the exact ELBO of a Gaussian
# q(u), eight bags at a step, Adam at five learning rates that fall to zero over the passes shown.
#
#     MILZOO_DATA=… python examples/closed_form_against_svi.py [--toy] [--out PICTURE]

# %%
import sys

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator
from milzoo.datasets import load
from milzoo.inference import svi
from milzoo.inference.closed_form import Options, closed_form
from milzoo.inference.quadrature_bound import QuadratureBound, WhitenedGaussian
from milzoo.models import VWSGP, Logistic, Probit

IS_TOY = "--toy" in sys.argv
DATA, PASSES = ("digits", 10) if IS_TOY else ("musk1", 60)
LEARNING_RATES = (0.1,) if IS_TOY else (1.0, 0.3, 0.1, 0.03, 0.01)
BATCH_SIZE = 8

# %%
bags = load(DATA).standardize()
models = {
    likelihood.name: VWSGP.as_published(bags, variance=1.0, likelihood=likelihood)
    for likelihood in (Logistic(), Probit())
}


# %% [markdown]
# The closed form maximises a bound below the ELBO: Jaakkola's for the logistic likelihood, Albert
# and Chib's for the probit. So it has two curves: the bound that it maximises, and the ELBO of its
# q(u) after each pass. SVI maximises that ELBO.


# %%
@jax.jit
def one_pass(form, rows, statistics):
    q = form.m_step(statistics)
    statistics, _ = form.e_step(rows, q, None)
    return q, statistics, form.elbo(q, statistics)


def closed_form_curves(model):
    """The maximised bound and the ELBO, after each pass."""
    with jax.enable_x64(True):
        form, bound = closed_form(model, Options()), jax.jit(QuadratureBound.of(model, bags))
        rows = form.prepare(bags)
        start = form.start(lambda rows, at_most: rows(bags), jax.random.key(0))
        statistics, _ = form.initial(rows, start)
        curves = []
        for _ in range(PASSES):
            q, statistics, maximised = one_pass(form, rows, statistics)
            curves.append((maximised, bound(as_gaussian(q))))
    return np.array(curves).T


def as_gaussian(q):
    """q(ε) = N(m, R⁻ᵀR⁻¹) with a lower factor of its covariance."""
    factor = jnp.linalg.cholesky(q.covariance_root @ q.covariance_root.T)
    return WhitenedGaussian(q.mean, jnp.log(jnp.diagonal(factor)), factor)


def stochastic(model, learning_rate):
    """The ELBO after each pass."""
    posterior = svi(
        model,
        bags,
        seed=0,
        expectation="quadrature",
        batch_size=BATCH_SIZE,
        learning_rate=learning_rate,
        max_steps=PASSES * (bags.num_bags // BATCH_SIZE),
        num_draws=1,
    )
    return posterior.elbo


curves = {
    likelihood: {
        "closed": closed_form_curves(model),
        "svi": {rate: stochastic(model, rate) for rate in LEARNING_RATES},
    }
    for likelihood, model in models.items()
}

# %%
figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
passes = np.arange(1, PASSES + 1)
shades = plt.get_cmap("cividis")(np.linspace(0.0, 0.85, len(LEARNING_RATES)))
for panel, (likelihood, found) in zip(panels, curves.items(), strict=True):
    maximised, elbo = found["closed"]
    for shade, (rate, trace) in zip(shades, found["svi"].items(), strict=True):
        panel.plot(passes, trace, color=shade, linewidth=1.3, label=f"SVI, rate {rate:g}")
    panel.plot(passes, elbo, color="#D55E00", linewidth=2.4, label="closed form: ELBO of its q(u)")
    panel.plot(
        passes,
        maximised,
        "--",
        color="#D55E00",
        linewidth=1.6,
        label="closed form: bound that it maximises",
    )
    best = max(elbo.max(), *(trace.max() for trace in found["svi"].values()))
    panel.set(
        title=likelihood,
        xlabel="passes over the bags",
        ylim=(best - 0.75 * bags.num_bags, best + 2),
        xscale="log",
    )
    panel.xaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50]))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_locator(NullLocator())
    panel.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("nats")
panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
if "--out" in sys.argv:
    figure.savefig(sys.argv[sys.argv.index("--out") + 1], dpi=110)

# %% [markdown]
# The closed form is within a nat of its end after a few passes. SVI needs more passes to come
# within a nat of the closed form's ELBO, at every learning rate. After many passes SVI ends as high
# or higher, by the gap of the bound that the closed form maximises. The assertions check this.


# %%
def first_pass(trace, level):
    """The first pass after which the trace is above the level; infinity if none."""
    reached = np.flatnonzero(trace > level)
    return int(reached[0]) + 1 if reached.size else np.inf


for likelihood, found in curves.items():
    maximised, elbo = found["closed"]
    last_pass = first_pass(maximised, maximised[-1] - 1.0)
    passes_of = {rate: first_pass(trace, elbo[-1] - 1.0) for rate, trace in found["svi"].items()}
    print(
        f"{likelihood}: the closed form is within a nat of its end after {last_pass} passes; its "
        f"bound is {maximised[-1]:.1f}, the ELBO of its q(u) {elbo[-1]:.1f}. SVI ends at "
        + ", ".join(
            f"{trace[-1]:.1f} (rate {rate:g}, within a nat of that from pass {passes_of[rate]})"
            for rate, trace in found["svi"].items()
        )
    )
    assert np.diff(maximised).min() > -1e-9 * abs(maximised[-1])
    assert (maximised < elbo).all()
    assert last_pass <= 5
    assert min(passes_of.values()) > last_pass
    assert max(trace[-1] for trace in found["svi"].values()) > elbo[-1] - 1.0
