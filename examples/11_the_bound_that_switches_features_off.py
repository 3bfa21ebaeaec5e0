# %% [markdown]
# # 11. The bound that switches features off
#
# A bound on the evidence is often used twice: for the posterior, and to choose hyper-parameters,
# as if it were the evidence. Section 4 of Castro-Macías et al. (2024) does so. The second use asks
# more of it: the gap between the two would have to be the same for all hyper-parameters. This
# notebook looks at the gap of VGPMIL, and finds that it grows with the prior variance: the bound
# would rather believe nothing at all.
#
#     python examples/11_the_bound_that_switches_features_off.py [--toy] [NAME]

# %%
# %matplotlib inline
import sys

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from milzoo.datasets import load
from milzoo.inference import coordinate_ascent, keep_programs, laplace, log_evidence, nuts
from milzoo.models import VGPMIL
from numpyro.distributions import LogNormal, Normal

keep_programs()

IS_TOY = "--toy" in sys.argv
NAME = next((name for name in sys.argv[1:] if name.isidentifier()), "digits")
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"

# %% [markdown]
# ## The model
#
# Evidence of an instance is a smooth function of its features, $f \sim GP(\mu_0, v\,k_\ell)$; an
# instance is positive with probability $\sigma(f)$, and a bag if one of its instances is. Three
# numbers are the user's: the variance $v$, the length scale $\ell$ and the prior mean $\mu_0$. As
# $v \to 0$ all instances are alike: the model knows how many are in a bag, and nothing else.
#
# The data here are images of digits in bags of ten. Any other set may be named on the command line,
# such as `musk1`, `elephant` or `fox` (from the folder `MILZOO_DATA`).

# %%
train, test = load(NAME).split(0.3 if IS_TOY else 0.7, seed=0)
train, test = train.standardize(), test.standardize(train)
NUM_INDUCING = 5 if IS_TOY else 20
model = VGPMIL.as_published(train, NUM_INDUCING, seed=0)
print(f"{train.num_bags} bags to learn from, {test.num_bags} to test on")
print({name: round(float(value), 2) for name, value in model.hyperparameters.items()})

# %% [markdown]
# ## Evidence and bound
#
# For each $v$ and $\mu_0$ there are two numbers. Coordinate ascent gives the bound. The evidence
# itself, $\log p(T)$, has no closed form, but importance sampling gets it from a good Gaussian:
# `log_evidence` of a posterior by `laplace`, with its Monte-Carlo error and a $\hat k$ that says
# whether to believe it.

# %%
VARIANCES = (0.001, 0.5, 5.0) if IS_TOY else (0.001, 0.1, 0.5, 2.0, 5.0, 10.0, 20.0)
MEANS = (-2.0,) if IS_TOY else (-1.0, -2.0, -4.0)


def measured(variance, mean):
    there = model.with_hyperparameters({"variance": variance, "mean": mean})
    exact = log_evidence(laplace(there, train, seed=0), seed=0)
    bound = coordinate_ascent(there, train, seed=0)
    return {
        "mean": mean,
        "variance": variance,
        "log evidence": exact.value,
        "error": exact.error,
        "khat": exact.khat,
        "ELBO": float(bound.elbo[-1]),
    }


table = pd.DataFrame([measured(v, mean) for mean in MEANS for v in VARIANCES])
table["gap"] = table["log evidence"] - table["ELBO"]
table.round(2)

# %% [markdown]
# The evidence is above the bound everywhere, as it must be. It is their difference that matters.

# %%
assert (table["gap"] > -4 * table["error"] - 0.01).all()
figure = Figure(figsize=(3.4 * len(MEANS) + 1, 3.4), layout="constrained")
panels = figure.subplots(1, len(MEANS), sharey=True, squeeze=False)[0]
for panel, (mean, rows) in zip(panels, table.groupby("mean", sort=False), strict=True):
    panel.plot(rows["variance"], rows["log evidence"], color=BLUE, marker="o")
    panel.plot(rows["variance"], rows["ELBO"], color=ORANGE, marker="s")
    panel.set(xscale="log", xlabel="prior variance v", title=f"μ0 = {mean:g}")
panels[0].set_ylabel("nats")
panels[0].legend(["log evidence", "ELBO"], frameon=False, loc="lower left")
figure

# %% [markdown]
# ## What each of them chooses
#
# At $v = 0.001$ nothing is unknown, so that there is nothing to lose: bound and evidence agree. The
# more the features may say, the more the bound gives away. So it prefers the model that ignores
# them, while the evidence prefers one that looks.

# %%
for mean, rows in table.groupby("mean", sort=False):
    chosen = {
        what: float(rows.loc[rows[what].idxmax(), "variance"]) for what in ("ELBO", "log evidence")
    }
    print(f"μ0 = {mean:g}: {chosen}")
    smallest, largest = rows["gap"].iloc[0], rows["gap"].iloc[-1]
    assert smallest < 0.5 and largest > 5 * abs(smallest)
    assert chosen["ELBO"] <= chosen["log evidence"]

# %% [markdown]
# ## Why
#
# The bound replaces each logistic function by a Gaussian with an auxiliary variable, and takes that
# as independent of $f$ (Jaakkola's bound, or Pólya-Gamma's). It is tight where $f$ is known and
# loose where it is not, once for each instance. With ten instances in a bag, of which most could
# be anything, that adds up. $KL(q\,\|\,p)$, the distance of the approximation, is a small part of
# it: see the table *How many nats?* of a report.
#
# ## Learning by the bound
#
# `coordinate_ascent(…, learn_hyperparameters=True)` does what the paper does, from the default
# values on.

# %%
by_bound = coordinate_ascent(model, train, seed=0, learn_hyperparameters=True)
print({name: round(float(value), 4) for name, value in by_bound.model.hyperparameters.items()})
print(by_bound.status.kind, "-", by_bound.status.sentence)

# %% [markdown]
# ## Learning by the evidence
#
# `laplace(…, learn_hyperparameters=True)` maximises Laplace's approximation of the log evidence,
# whose gradient goes through the mode. Weak priors keep it off a ridge along which the data say
# nothing: with few bags the scale of $f$ and its mean can grow together for ever.

# %%
priors = {
    "variance": LogNormal(1.0, 1.0),
    "length_scale": LogNormal(float(np.log(model.hyperparameters["length_scale"])), 0.5),
    "mean": Normal(-4.0, 3.0),
}
opened = model.with_hyperparameters(priors)
by_evidence = laplace(opened, train, seed=0, learn_hyperparameters=True)
print({name: round(float(value), 2) for name, value in by_evidence.model.hyperparameters.items()})
print(by_evidence.status.sentence)
found = log_evidence(by_evidence, seed=0)
print(f"log evidence there, by weights: {found.value:.2f}, k̂ {found.khat:.2f}")
assert float(by_evidence.model.hyperparameters["variance"]) > 0.5
assert found.value > by_bound.elbo[-1]

# %% [markdown]
# ## The judge
#
# NUTS with the same priors needs no evidence: it draws the hyper-parameters with everything else.

# %%
chains = (
    {"num_warmup": 50, "num_samples": 50} if IS_TOY else {"num_warmup": 300, "num_samples": 300}
)
judge = nuts(opened, train, seed=0, num_chains=2, **chains)
drawn = judge.stored_draws()
learned = {
    "by the bound": by_bound.model.hyperparameters,
    "by the evidence": by_evidence.model.hyperparameters,
    "NUTS, 5 %": {name: np.quantile(drawn[name], 0.05) for name in priors},
    "NUTS, 95 %": {name: np.quantile(drawn[name], 0.95) for name in priors},
}
pd.DataFrame(learned).astype(float).round(3)

# %% [markdown]
# Its posterior of the variance, and the values that the two searches chose:

# %%
figure = Figure(figsize=(6, 3.2), layout="constrained")
panel = figure.subplots()
panel.hist(np.log10(drawn["variance"]), bins=30, density=True, color="0.8", label="NUTS")
for values, colour, name in (
    (by_bound.model, ORANGE, "learned by the bound"),
    (by_evidence.model, GREEN, "learned by the evidence"),
):
    variance = max(float(values.hyperparameters["variance"]), 1e-6)
    panel.axvline(np.log10(variance), color=colour, label=name)
panel.set(xlabel="log₁₀ of the prior variance v", ylabel="density")
panel.legend(frameon=False, loc="upper left")
figure

# %%
assert np.quantile(drawn["variance"], 0.01) > 0.05
inside = np.quantile(drawn["variance"], [0.005, 0.995])
assert inside[0] < float(by_evidence.model.hyperparameters["variance"]) < inside[1]

# %% [markdown]
# ## Does it matter?
#
# On bags that nobody has seen. Coordinate ascent at the values that the evidence chose is as quick
# as ever: it is the choice that was wrong, more than the approximation.

# %%
posteriors = {
    "defaults": coordinate_ascent(model, train, seed=0),
    "by the bound": by_bound,
    "by the evidence": coordinate_ascent(by_evidence.model, train, seed=0),
    "by the evidence, laplace": by_evidence,
    "NUTS": judge,
}


def log_loss(posterior):
    """Mean −log P(T* = truth), and the AUC's share of pairs in the right order."""
    probability = posterior.predict(test.without_labels()).bag_probability
    positive, negative = (probability[test.labels == label] for label in (1, 0))
    right = np.append(positive, 1 - negative)
    order = np.subtract.outer(positive, negative)
    return {
        "log loss": -np.log(np.maximum(right, 1e-12)).mean(),
        "AUC": np.mean(order > 0) + 0.5 * np.mean(order == 0),
    }


scores = pd.DataFrame({name: log_loss(one) for name, one in posteriors.items()}).T
scores.round(3)

# %% [markdown]
# ## What to take from it
#
# - A bound may be good enough for a posterior and no guide to hyper-parameters. Where it is to
#   choose, look at the gap at two values first.
# - `status` is `collapsed` where the bound has switched the features off, and says so.
# - Learn by the evidence (`laplace`), or give the hyper-parameters priors and draw them (`nuts`).
