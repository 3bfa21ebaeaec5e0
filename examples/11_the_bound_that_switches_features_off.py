# %% [markdown]
# # 11. The bound that switches features off
#
# A bound on the evidence is often used twice: for the posterior, and to choose hyper-parameters,
# as if it were the evidence. Section 4 of Castro-Macías et al. (2024) does so. The second use needs
# more: the gap between bound and evidence must be the same for all hyper-parameters. This notebook
# measures the gap of VGPMIL. It grows with the prior variance, so that the bound prefers a model
# that ignores the features.
#
#     python examples/11_the_bound_that_switches_features_off.py [--toy] [NAME]

# %% [markdown]
# **You will learn**
#
# - how the gap between ELBO and evidence changes with a hyper-parameter,
# - why a bound can choose the model that ignores all features,
# - how to choose hyper-parameters by the evidence, or draw them.

# %%
# %matplotlib inline
import sys

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from milzoo.datasets import load
from milzoo.diagnostics import plot_with_slider
from milzoo.inference import coordinate_ascent, keep_programs, laplace, log_evidence, nuts
from milzoo.models import VGPMIL
from numpyro.distributions import LogNormal, Normal
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

keep_programs()

IS_TOY = "--toy" in sys.argv
NAME = next((name for name in sys.argv[1:] if name.isidentifier()), "digits")
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"

# %% [markdown]
# ## The model
#
# Each instance has a latent function value, smooth in its features: $f \sim GP(\mu_0, v\,k_\ell)$.
# An instance is positive with probability $\sigma(f)$, and a bag if one of its
# instances is. The user chooses three numbers: the variance $v$, the length scale $\ell$ and the
# prior mean $\mu_0$. As $v \to 0$ all instances are alike, and only the size of a bag counts.
#
# The data here are images of digits in bags of ten. The command line takes the name of any other
# data set, for example `musk1`, `elephant` or `fox` (from the folder `MILZOO_DATA`).

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
# For each $v$ and $\mu_0$ there are two numbers. Coordinate ascent gives the bound. The log
# evidence $\log p(T)$ has no closed form, but importance sampling estimates it from a good
# Gaussian. `log_evidence` of a posterior by `laplace` has a Monte-Carlo error, and a $\hat k$ that
# says whether the estimate is reliable.

# %%
VARIANCES = (0.001, 0.5, 5.0) if IS_TOY else (0.001, 0.1, 0.5, 2.0, 5.0, 10.0, 20.0)
MEANS = (-2.0,) if IS_TOY else (-1.0, -2.0, -4.0)


def fitted(variance, mean):
    there = model.with_hyperparameters({"variance": variance, "mean": mean})
    return laplace(there, train, seed=0), coordinate_ascent(there, train, seed=0)


fits = {(mean, variance): fitted(variance, mean) for mean in MEANS for variance in VARIANCES}


def measured(mean, variance):
    gaussian, ascent = fits[mean, variance]
    exact = log_evidence(gaussian, seed=0)
    return {
        "mean": mean,
        "variance": variance,
        "log evidence": exact.value,
        "error": exact.error,
        "khat": exact.khat,
        "ELBO": float(ascent.elbo[-1]),
    }


table = pd.DataFrame([measured(*hyperparameters) for hyperparameters in fits])
table["gap"] = table["log evidence"] - table["ELBO"]
table.round(2)

# %% [markdown]
# The evidence is above the bound everywhere, as it must be. Their difference matters.

# %% slideshow={"slide_type": "slide"}
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
# ## Which variance each of them chooses
#
# At $v = 0.001$ the function is known, and bound and evidence agree. The gap grows with $v$. So the
# bound prefers a far smaller variance than the evidence does.

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
# What does the choice do to predictions? Move the variance. Each dot is the label of a test bag,
# and the lines are its probability by both engines. The title has the gap in nats.

# %%
SHOWN_MEAN = -2.0
gap = table[table["mean"] == SHOWN_MEAN].set_index("variance")["gap"]
probabilities = {
    variance: {
        name: posterior.predict(test.without_labels()).bag_probability
        for name, posterior in zip(("laplace", "coordinate ascent"), both, strict=True)
    }
    for (mean, variance), both in fits.items()
    if mean == SHOWN_MEAN
}
order = np.argsort(probabilities[5.0]["laplace"])


def in_order(values, name, **columns):
    rows = {"test bags, in order": np.arange(test.num_bags), "P(bag positive)": values[order]}
    return pd.DataFrame(rows).assign(engine=name, **columns)


lines = [
    in_order(values, name, variance=f"{variance:g}, gap {gap[variance]:.1f}")
    for variance, by_engine in probabilities.items()
    for name, values in by_engine.items()
]
plot_with_slider(
    pd.concat(lines),
    x="test bags, in order",
    y="P(bag positive)",
    slider="variance",
    colour="engine",
    points=in_order(test.labels, "label", variance=None),  # in every frame
)

# %% [markdown]
# At $v = 0.001$ all bags of one size have the same probability, and the gap is nearly 0. With more
# variance the probabilities follow the labels, and the gap grows.

# %%
widths = {variance: np.ptp(one["laplace"]) for variance, one in probabilities.items()}
assert widths[0.001] < widths[0.5] < widths[5.0]
assert gap[0.001] < gap[0.5] < gap[5.0]

# %% [markdown]
# ## Why
#
# The bound replaces each logistic function by a Gaussian with an auxiliary variable, and assumes
# that the variable is independent of $f$ (Jaakkola's bound, or Pólya-Gamma's). It is tight where
# $f$ is known and loose where it is not, once for each instance. In a bag of ten, most instances
# are uncertain, and the losses add up. $KL(q\,\|\,p)$ is a small part of the gap: see the table
# *How many nats?* of a report.
#
# ## Learning by the bound
#
# `coordinate_ascent(…, learn_hyperparameters=True)` follows the paper, from the default values on.

# %%
by_bound = coordinate_ascent(model, train, seed=0, learn_hyperparameters=True)
print({name: round(float(value), 4) for name, value in by_bound.model.hyperparameters.items()})
print(by_bound.status.kind, "-", by_bound.status.sentence)

# %% [markdown]
# ## Learning by the evidence
#
# `laplace(…, learn_hyperparameters=True)` maximises Laplace's approximation of the log evidence,
# and its gradient goes through the mode. The priors are weak. They exclude a ridge of nearly equal
# evidence: with few bags the scale of $f$ and its mean can grow together for ever.

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
# ## The reference
#
# NUTS with the same priors needs no evidence: it draws the hyper-parameters with all unknowns.

# %%
chains = (
    {"num_warmup": 50, "num_samples": 50} if IS_TOY else {"num_warmup": 300, "num_samples": 300}
)
reference = nuts(opened, train, seed=0, num_chains=2, **chains)
drawn = reference.stored_draws()
learned = {
    "by the bound": by_bound.model.hyperparameters,
    "by the evidence": by_evidence.model.hyperparameters,
    "NUTS, 5 %": {name: np.quantile(drawn[name], 0.05) for name in priors},
    "NUTS, 95 %": {name: np.quantile(drawn[name], 0.95) for name in priors},
}
pd.DataFrame(learned).astype(float).round(3)

# %% [markdown]
# The posterior of the variance by NUTS, and the values that the two searches chose:

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
# We compare predictions for test bags. Coordinate ascent at the values that the evidence chose is
# as quick as before. The choice was wrong, more than the approximation.

# %%
posteriors = {
    "defaults": coordinate_ascent(model, train, seed=0),
    "by the bound": by_bound,
    "by the evidence": coordinate_ascent(by_evidence.model, train, seed=0),
    "by the evidence, laplace": by_evidence,
    "NUTS": reference,
}


def scores_of(posterior):
    probability = posterior.predict(test.without_labels()).bag_probability
    return {
        "log loss": log_loss(test.labels, probability),
        "AUC": roc_auc_score(test.labels, probability),
    }


scores = pd.DataFrame({name: scores_of(one) for name, one in posteriors.items()}).T
scores.round(3)

# %% [markdown]
# ## Conclusions
#
# - A bound may suffice for a posterior and mislead about hyper-parameters. Before it chooses,
#   compute the gap at two values.
# - `status` is `collapsed` where the bound has switched the features off.
# - Learn by the evidence (`laplace`), or give the hyper-parameters priors and draw them (`nuts`).

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let $v \to 0$. Write the log evidence as a function of $\mu_0$ and the sizes of
# the bags, with sharpness $H = 100$. Compare it with `log_evidence` at $v = 10^{-6}$.

# %% tags=["hide-cell"]
without_features = log_evidence(fitted(1e-6, -2.0)[0], seed=0).value
sizes = np.diff(np.append(train.starts, train.num_instances))
none_positive = (1 - expit(-2.0)) ** sizes
# The label is the maximum of the instance labels with probability H / (H + 1).
positive = (100 - 99 * none_positive) / 101
by_hand = np.sum(np.log(np.where(train.labels == 1, positive, 1 - positive)))
print(f"by hand {by_hand:.3f}, at v = 10⁻⁶ {without_features:.3f}")
assert abs(by_hand - without_features) < 0.05

# %% [markdown]
# **Exercise 2.** Take the two models $v = 0.001$ and $v = 5$ with $\mu_0 = -2$, equally probable a
# priori. How probable is $v = 5$ given the labels, by the evidence? And if the ELBO were the
# evidence?

# %% tags=["hide-cell"]
at = table[table["mean"] == -2.0].set_index("variance")[["log evidence", "ELBO"]]
probable = expit(at.loc[5.0] - at.loc[0.001])
print(probable.round(6).to_string())
assert probable["log evidence"] > 0.9 > 0.1 > probable["ELBO"]

# %% [markdown]
# **Exercise 3.** Predict every test bag with the fraction of positive training bags. Which row of
# the last table has about this log loss, and why?

# %% tags=["hide-cell"]
constant = log_loss(test.labels, np.full(test.num_bags, train.labels.mean()))
print(f"log loss of a constant: {constant:.3f}")
# Without features all bags of ten are alike, and the bound fits their fraction.
assert abs(scores.loc["by the bound", "log loss"] - constant) < 0.05
