# %% [markdown]
# # 3. When a bound lies
#
# A lower bound is always a bound on the evidence of *some* model. As long as that is the model one
# has in mind, a higher bound is good news. This notebook changes one function in the updates of
# notebook 2, as Castro-Macías et al. (2024) propose. The bound goes up, every check of the updates
# passes, and the model has become another one, with a posterior far away. Two unknown numbers are
# enough to see it, so that the exact answer stands beside every claim.
#
#     python examples/03_when_a_bound_lies.py [--toy]

# %% [markdown]
# **You will learn**
#
# - how a change to the updates changes the model, and not only the algorithm,
# - why a higher bound can belong to less probable labels,
# - which checks notice it, and which do not.

# %%
# %matplotlib inline
import sys
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from milzoo.datasets import Bags
from milzoo.diagnostics import compare, plot_with_slider
from milzoo.inference import coordinate_ascent, grid, keep_programs, nuts
from milzoo.inference.closed_form import Options, closed_form
from milzoo.models import VGPMIL, GammaScaleMixture, PolyaGammaScaleMixture

keep_programs()

IS_TOY = "--toy" in sys.argv
BLUE, ORANGE, RED = "#0072B2", "#E69F00", "#D55E00"

# %% [markdown]
# ## One function in the updates
#
# In notebook 2 the logistic function was a mixture of Gaussians, mixed by a random precision
# $\omega$ with the Pólya-Gamma distribution. The closed-form updates need one function of that
# distribution, the mean of $\omega$ given the size $c$ of the latent value:
#
# $$\theta(c) = \mathrm{E}[\omega \mid c] = -\frac{\psi'(c)}{c\,\psi(c)},
# \qquad \psi(f) = \frac{1}{2\cosh(f/2)}$$
#
# So one may put in another $\psi$, hence another $\theta$, and keep the rest of the algorithm. With
# a Gamma distribution of $\omega$, of shape $\alpha$ and rate $\beta$,
#
# $$\psi(f) = \Big(1 + \frac{f^2}{2\beta}\Big)^{-\alpha}, \qquad
# \theta(c) = \frac{\alpha}{\beta + c^2/2}$$
#
# The paper comes to $\alpha = 1, \beta = 4$ first, where $\theta(0)$ is that of Pólya-Gamma.

# %%
SCALE_MIXTURES = {
    "Pólya-Gamma": (PolyaGammaScaleMixture(), "black"),
    "Gamma, α = 1, β = 3": (GammaScaleMixture(1.0, 3.0), ORANGE),
    "Gamma, α = 1, β = 4": (GammaScaleMixture(1.0, 4.0), RED),
}


def precision(scale_mixture, c):
    """θ(c)."""
    with jax.enable_x64(True):
        return np.asarray(scale_mixture.expected_precision(np.asarray(c, dtype=float)))


c = np.linspace(0, 10, 201)
figure = Figure(figsize=(6, 3.2), layout="constrained")
panel = figure.subplots()
for name, (scale_mixture, colour) in SCALE_MIXTURES.items():
    panel.plot(c, precision(scale_mixture, c), color=colour, label=name)
panel.set(xlabel="c, size of the latent value", ylabel="θ(c)", ylim=(0, 0.36))
panel.legend(frameon=False)
assert np.isclose(
    precision(GammaScaleMixture(1.0, 4.0), 0.0), precision(PolyaGammaScaleMixture(), 0.0)
)
figure

# %% [markdown]
# ## Which model is that?
#
# The updates see the product $N(f)\,\prod_n \psi(f_n)\, e^{(y_n - 1/2) f_n}$ and the rule that
# makes bag labels of the instance labels $y$. To find the prior of $f$ in it, sum over each $y_n$:
# $e^{f/2} + e^{-f/2} = 2\cosh(f/2)$, hence
#
# $$p(f) \propto N(f) \prod_n \psi(f_n)\, 2\cosh(f_n/2)$$
#
# With the hyperbolic secant the product is 1, and the prior is the Gaussian process. With any other
# $\psi$ the Gaussian process is multiplied by a weight for each instance. The paper says so (its
# equation 22), and calls it flexibility. Here is the weight, in logarithms:


# %%
def log_weight(scale_mixture, f):
    """log ψ(f) + log 2cosh(f/2), less its value at 0."""
    with jax.enable_x64(True):
        log_shape = np.asarray(scale_mixture.log_density(np.append(0.0, f)))
    return log_shape[1:] - log_shape[0] + np.logaddexp(f / 2, -f / 2) - np.log(2)


f = np.linspace(-20, 20, 401)
figure = Figure(figsize=(6, 3.2), layout="constrained")
panel = figure.subplots()
for name, (scale_mixture, colour) in SCALE_MIXTURES.items():
    panel.plot(f, log_weight(scale_mixture, f), color=colour, label=name)
panel.set(xlabel="f, latent value of one instance", ylabel="log weight", ylim=(-0.6, 7.5))
panel.legend(frameon=False, loc="upper center")
np.testing.assert_allclose(log_weight(PolyaGammaScaleMixture(), f), 0, atol=1e-12)
figure

# %% [markdown]
# $\psi$ falls like a power of $f$, and $2\cosh(f/2)$ grows like $e^{|f|/2}$. So the weight grows
# without limit: this prior favours latent values far from 0. At 0 there may be a local maximum: the
# curvature of the log weight is $\tfrac14 - \alpha/\beta$ there, which is negative if
# $\alpha > \beta/4$. The paper tries six pairs of $\alpha$ and $\beta$. Three have no maximum at 0:

# %%
for alpha in (0.5, 1.0):
    for beta in (1.0, 2.5, 4.0):
        is_maximum = bool(log_weight(GammaScaleMixture(alpha, beta), np.array([0.5])) < 0)
        print(f"α = {alpha}, β = {beta}: {'a maximum' if is_maximum else 'no maximum'} at 0")
        assert is_maximum == (alpha > beta / 4)

# %% [markdown]
# ## Many instances
#
# The weights of instances multiply, but there is only one Gaussian process. Take $N$ instances so
# alike that they have one latent value $c$, with prior variance $v = 4$. The log density of $c$ is
# $-c^2/2v$ plus $N$ log weights:

# %%
VARIANCE = 4.0


def log_prior_of_alike(c, num_instances, scale_mixture):
    return -(c**2) / (2 * VARIANCE) + num_instances * log_weight(scale_mixture, c)


figure = Figure(figsize=(9, 3.2), layout="constrained")
modes = {}
for panel, (number, reach) in zip(
    figure.subplots(1, 3), ((1, 10), (10, 30), (30, 90)), strict=True
):
    c = np.linspace(-reach, reach, 3601)
    log_prior = log_prior_of_alike(c, number, GammaScaleMixture(1.0, 3.0))
    modes[number] = abs(c[log_prior.argmax()])
    panel.plot(c, log_prior, color=ORANGE)
    panel.axhline(0, color="black", lw=0.6)
    panel.set(title=f"{number} alike", xlabel="c")
figure.axes[0].set_ylabel("log density, less that at 0")
print(", ".join(f"{number} alike: mode at {mode:.1f}" for number, mode in modes.items()))
assert np.isclose(modes[1], 0)
assert np.isclose((modes[30] - modes[10]) / 20, VARIANCE / 2, rtol=0.1)
figure

# %% [markdown]
# One instance does no harm. With ten there are modes at both sides, and with thirty they are far
# higher than the one at 0. Far out the derivative is about $-c/v + N(\tfrac12 - 2\alpha/c)$, so
# that the modes are near $N v/2$, and each further instance moves them out by about $v/2$. In this
# model more instances do not tell more about $f$: they drive it away.
#
# ## Sharpen H
#
# Can labels bring it back? A label is right with probability $H/(1+H)$: it says nothing at $H = 1$,
# and is certain as $H$ grows. Here are ten bags of three instances, all thirty alike; three bags
# are positive. Drag $H$ and watch the modes, the dots. The labels bend the logistic posterior. They
# lower one far mode of the Gamma model against the other, and never below the mode at 0.


# %%
def log_posterior_of_alike(c, sharpness, scale_mixture):
    """Log density of the one latent value, less that at 0: three positive bags of ten."""
    # A bag of three is negative with probability σ(−c)³, and its label may be wrong.
    negative = np.exp(-3 * np.logaddexp(0, c))
    log_positive = np.log((sharpness * (1 - negative) + negative) / (1 + sharpness))
    log_negative = np.log((1 - negative + sharpness * negative) / (1 + sharpness))
    return log_prior_of_alike(c, 30, scale_mixture) + 3 * log_positive + 7 * log_negative


c = np.linspace(-76, 76, 305)
frames, dots, heights = [], [], {}
for sharpness in (1.0, 100.0) if IS_TOY else (1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 300.0, 1000.0):
    for name, scale_mixture in (
        ("logistic", PolyaGammaScaleMixture()),
        ("Gamma", GammaScaleMixture(1.0, 3.0)),
    ):
        value = log_posterior_of_alike(c, sharpness, scale_mixture)
        value -= value[c == 0]
        line = pd.DataFrame({"latent value": c, "log density, less that at 0": value})
        frames.append(line.assign(H=sharpness, model=name))
        is_mode = (value[1:-1] > value[:-2]) & (value[1:-1] > value[2:])
        dots.append(frames[-1][1:-1][is_mode])
        heights[sharpness, name] = value.max()
assert min(heights[sharpness, "Gamma"] for sharpness, _ in heights) > 100
assert max(heights[sharpness, "logistic"] for sharpness, _ in heights) < 10
lines = pd.concat(frames)
plot_with_slider(
    lines[lines["log density, less that at 0"] > -60],
    x="latent value",
    y="log density, less that at 0",
    slider="H",
    colour="model",
    points=pd.concat(dots),
)

# %% [markdown]
# ## Ten bags, two unknown numbers
#
# Now a problem of multiple-instance learning: ten bags of three instances, three of them positive,
# and a smooth f (length scale 4) that is known by its values at two inducing points. `grid` sums up
# the exact posterior of two numbers and its evidence. `coordinate_ascent` maximises the bound.

# %%
random = np.random.default_rng(0)
bags = Bags.from_list(
    [random.normal(size=(3, 2)) for _ in range(10)], labels=(np.arange(10) < 3).astype(int)
)
logistic = VGPMIL.for_bags(bags, num_inducing=2, variance=VARIANCE, length_scale=4.0, mean=0.0)
gamma = replace(logistic, scale_mixture=GammaScaleMixture(1.0, 3.0))


def sum_up(model):
    return grid(model, bags, seed=0, num_points=81)


def two_numbers(posterior):
    """Draws of f at the two inducing points."""
    return posterior.stored_draws()["inducing_value"]


closed = {
    "logistic": coordinate_ascent(logistic, bags, seed=0),
    "Gamma": coordinate_ascent(gamma, bags, seed=0),
}
exact = {"logistic": sum_up(logistic), "Gamma": sum_up(gamma)}
for name, posterior in closed.items():
    size, exact_size = (abs(two_numbers(one)).mean() for one in (posterior, exact[name]))
    print(f"{name}, closed form: bound {posterior.elbo[-1]:.2f}, typical |f| {size:.1f}")
    print(f"{name}, exact: log evidence {exact[name].elbo[-1]:.2f}, typical |f| {exact_size:.1f}")

# %% [markdown]
# With the Gamma distribution the bound is far higher than for the logistic model, nearly twenty
# nats. By its bound it is the better model. But its exact posterior is not where the closed form
# is:

# %% slideshow={"slide_type": "slide"}
assert closed["Gamma"].elbo[-1] > closed["logistic"].elbo[-1] + 15
figure = Figure(figsize=(9, 4.4), layout="constrained")
near, far = figure.subplots(1, 2)
clouds = (
    (exact["logistic"], "#999999", "exact, logistic"),
    (closed["logistic"], BLUE, "closed form, logistic"),
    (closed["Gamma"], ORANGE, "closed form, Gamma"),
    (exact["Gamma"], RED, "exact, Gamma"),
)
for posterior, colour, name in clouds:
    first, second = two_numbers(posterior).T
    for panel in (near, far):
        panel.scatter(first, second, s=6, color=colour, alpha=0.6, edgecolors="none", label=name)
for panel, title, reach in ((near, "near 0", 7), (far, "all of it", 65)):
    panel.set(title=title, xlim=(-reach, reach / 10), ylim=(-reach, reach / 10), aspect="equal")
    panel.set(xlabel="f at the first point", ylabel="f at the second point")
handles, names = far.get_legend_handles_labels()
figure.legend(handles, names, frameon=False, loc="outside lower center", ncols=4, markerscale=3)
figure

# %% [markdown]
# The closed form of the Gamma model lies among the draws of the *logistic* posterior, with a small
# bias. It has nothing of the posterior of its own model. The far mode is where the gradient
# vanishes. With $K$ the prior covariance of the latent values of all thirty instances, all of them
# negative, it is at $f = K(-\tfrac12 - 2\alpha/f)$:


# %%
def far_mode(model):
    """f at the inducing points, at the mode where the latent values of all are negative."""
    with jax.enable_x64(True):
        covariance = np.asarray(model.kernel.covariance(bags.instances, bags.instances))
        to_points = np.asarray(model.kernel.covariance(model.inducing_points, bags.instances))
    latent = -covariance.sum(axis=1) / 2
    for _ in range(100):
        gradient = -0.5 - 2 * model.scale_mixture.alpha / latent
        latent = covariance @ gradient
    return to_points @ gradient


location, sd = two_numbers(exact["Gamma"]).mean(axis=0), two_numbers(exact["Gamma"]).std(axis=0)
print(f"mode {far_mode(gamma).round(1)}, exact mean {location.round(1)}, sd {sd.round(1)}")
assert (abs(location - far_mode(gamma)) < 0.2 * sd).all()
assert two_numbers(exact["Gamma"]).max() < 5 * two_numbers(closed["Gamma"]).min()

# %% [markdown]
# ## The bound is right, about something else
#
# Is the bound wrong, then? No: both are below the log evidence of their own model, as they must be.
# What is wrong is to read them as bounds on the log probability of the labels. A log probability is
# never above 0, and 213 is. The density of $f$ in the Gamma model was given up to a constant only.
# Its normalising constant $Z$ is in the paper's objective (equation 29), but neither in the updates
# nor in the numbers printed above.
#
# `grid` can also sum up $Z$. With sharpness $H = 1$ bag labels are tosses of a fair coin,
# whatever the instances are. Then the evidence is $Z \cdot 2^{-10}$, and the posterior
# is the prior.

# %%
before = sum_up(replace(gamma, sharpness=1.0))
log_constant = {"logistic": 0.0, "Gamma": before.elbo[-1] + bags.num_bags * np.log(2)}
log_probability = {name: exact[name].elbo[-1] - log_constant[name] for name in exact}
for name, posterior in closed.items():
    assert posterior.elbo[-1] < exact[name].elbo[-1]
    print(
        f"{name}: log Z {log_constant[name]:.2f}, log probability of the labels "
        f"{log_probability[name]:.2f}, bound on it {posterior.elbo[-1] - log_constant[name]:.2f}"
    )
print(f"ten tosses of a coin: {-bags.num_bags * np.log(2):.2f}")
assert log_probability["Gamma"] < -bags.num_bags * np.log(2)

# %% [markdown]
# The labels are *less* probable under the Gamma model than under the logistic one, and less than if
# a coin had been tossed. The number can be had by hand. Before there are data, this model believes
# with probability ½ that all instances are negative, far out, and else that all are positive. "All
# negative" makes three labels of ten wrong, which costs $\log 101$ each ($H = 100$). "All positive"
# makes seven wrong. After the data the model therefore says of every bag that it is negative, also
# of the three that it was told are positive:

# %%
fraction_negative = (two_numbers(before) < -10).all(axis=1).mean()
fraction_positive = (two_numbers(before) > 10).all(axis=1).mean()
print(
    f"before the data: {fraction_negative:.2f} all negative, {fraction_positive:.2f} all positive"
)
assert fraction_negative + fraction_positive == 1
by_hand = np.log(0.5) + 3 * np.log(1 / 101) + 7 * np.log(100 / 101)
print(f"log probability by hand {by_hand:.4f}, summed up {log_probability['Gamma']:.4f}")
assert np.isclose(by_hand, log_probability["Gamma"], atol=1e-3)
for name, posterior in exact.items():
    probability = posterior.predict(bags).bag_probability
    print(f"{name}, after: {', '.join(f'{one:.2f}' for one in probability)}")
np.testing.assert_allclose(probability, 1 / 101, atol=1e-4)

# %% [markdown]
# The paper shows that $Z$ is finite, and estimates it by draws from the Gaussian process. Finite is
# not the same as easy. Here are many draws, averaged:

# %%
num_draws = 10**5 if IS_TOY else 10**6
with jax.enable_x64(True):
    conditional = logistic.conditional(bags)
    projection = np.asarray(conditional.projection)
    residual_scale = np.asarray(conditional.residual_scale)
whitened = random.standard_normal((num_draws, 2))
log_product = np.full(num_draws, bags.num_instances * np.log(2))
for row, scale in zip(projection, residual_scale, strict=True):
    latent = whitened @ row + scale * random.standard_normal(num_draws)
    log_product += log_weight(gamma.scale_mixture, latent)
product = np.exp(log_product - log_product.max())
by_draws = log_product.max() + np.log(product.mean())
effective = product.sum() ** 2 / (product**2).sum()
print(f"log Z by {num_draws:,} draws {by_draws:.1f}, exact {log_constant['Gamma']:.1f}")
print(f"the average rests on {effective:.1f} of them")
assert by_draws < log_constant["Gamma"] - 100

# %% [markdown]
# The estimate is more than a hundred nats short, since the values that count are some 26 prior sds
# out, where no draw will ever be. The only sign of it is that the average rests on so few draws.
#
# ## A bound that rises
#
# So far coordinate ascent stopped at the mode near 0. With $\beta = 4$, the paper's first choice,
# the weights have none. The updates are the same, and correct: the bound rises at every step. Here
# are both, step by step: `m_step` makes $q(u)$ from expected sufficient statistics, and `e_step`
# these from $q(u)$.


# %%
@jax.jit
def ascend_once(form, rows, statistics):
    """The next statistics, the bound, and |E f| averaged over the instances."""
    q = form.m_step(statistics)
    statistics, _ = form.e_step(rows, q, None)
    size = abs(form.model.mean + rows.rows @ q.mean).mean()
    return statistics, form.elbo(q, statistics), size


def ascend(model, num_steps=22):
    """The bound, and |E f| averaged over the instances, after each step."""
    with jax.enable_x64(True):
        form = closed_form(model, Options()).in_memory(bags)
        rows = form.prepare(bags)
        start = form.start(lambda rows, at_most: rows(bags), jax.random.key(0))
        statistics, _ = form.initial(rows, start)
        path = []
        for _ in range(num_steps):
            statistics, *noted = ascend_once(form, rows, statistics)
            path.append(noted)
    return np.array(path).T


first_choice = replace(logistic, scale_mixture=GammaScaleMixture(1.0, 4.0))
paths = {"β = 3": (*ascend(gamma), ORANGE), "β = 4": (*ascend(first_choice), RED)}
for name, (bound, size, _) in paths.items():
    for step in (2, 8, 14, 20):
        print(f"{name}, step {step:2d}: bound {bound[step - 1]:6.1f}, |E f| {size[step - 1]:4.1f}")
    assert (np.diff(bound) > -1e-9 * abs(bound[:-1])).all()
assert paths["β = 4"][1][7] < 5 < 45 < paths["β = 4"][1][19]

figure = Figure(figsize=(9, 3.2), layout="constrained")
panels = figure.subplots(1, 2)
for name, (bound, size, colour) in paths.items():
    steps = np.arange(1, len(bound) + 1)
    panels[0].plot(steps, bound, ".-", color=colour, label=name)
    panels[1].plot(steps, size, ".-", color=colour)
panels[0].set(xlabel="steps", ylabel="bound, nats")
panels[0].legend(frameon=False, loc="upper left")
panels[1].set(xlabel="steps", ylabel="|E f|, mean over instances")
figure

# %% [markdown]
# For eight steps the bound rises slowly, as if it were about to converge. Then it rises fast.
# Whoever stops early has a sensible answer, whoever waits has none, and the bound favours those who
# wait. The paper stops when the ranking of validation bags has not improved for ten steps, and
# chooses $\alpha$ and $\beta$ by accuracy. That is a way to good predictions, and no way to the
# posterior of this model.
#
# ## How to notice
#
# That the bound rises, that it converges, how high it is: none of this has helped. The Pareto
# $\hat k$ of importance ratios asks how well $q$ fits the posterior of its own model *where it has
# draws*. Below 0.7 importance weighting corrects it.

# %%
if not IS_TOY:
    closed["Gamma, β = 4"] = coordinate_ascent(first_choice, bags, seed=0)
    khat = compare(closed).table["khat"]
    for name, value in khat.items():
        print(f"{name}: k̂ = {value:.2f}")
    location = two_numbers(closed["Gamma, β = 4"]).mean(axis=0)
    print(f"β = 4: far mode {far_mode(first_choice).round(1)}, mean of q {location.round(1)}")
    assert (abs(location - far_mode(first_choice)) < 0.2 * sd).all()
    assert khat["Gamma, β = 4"] < 0.5

# %% [markdown]
# With $\beta = 3$ it is near the limit, for a misfit nearby. It does not see a mode two hundred
# nats higher. With $\beta = 4$ it is low, and rightly so: $q$ fits the far mode. The approximation
# is good, and the model is not the one that anyone meant. So there are two questions, and two
# remedies:
#
# - *Is q the posterior of its own model?* Ask a sampler of the same model. Its chains may find what
#   an ascent did not.
# - *Is it the model that I mean?* Draw from its prior, as above, or put it beside a posterior of
#   the model that is meant.
#
# `compare` does both. It names the target density of each posterior and takes a sampler of the
# logistic model as reference. It says when a posterior is about something else, or when its own
# model has left it behind:

# %%
if not IS_TOY:
    lengths = {"num_warmup": 300, "num_samples": 300, "num_chains": 4}
    runs = {
        "ascent": closed["logistic"],
        "NUTS": nuts(logistic, bags, seed=0, **lengths),
        "ascent, β = 3": closed["Gamma"],
        "NUTS, β = 3": nuts(gamma, bags, seed=0, **lengths),
    }
    comparison = compare(runs)
    print(comparison.reference_sentence, *comparison.sentences.values(), sep="\n\n")
    assert comparison.table.loc["ascent", "mean_error"] < 0.5
    assert comparison.table.loc["ascent, β = 3", "own_mean_error"] > 10
    assert "has run away from it" in comparison.sentences["ascent, β = 3"]

# %% [markdown]
# ## What to take home
#
# - A bound belongs to a model. Write the model down, as a program, before you rely on its bound.
# - Bounds of two models can be compared only if both are normalised. One that is above 0, on
#   labels, is not.
# - Coordinate ascent finds a mode nearby. The bound says how high that mode is, and not whether
#   there is another one.
# - With another $\psi$ there are two target densities, of the model that $\psi$ makes and of the
#   logistic model. Say which one is meant, and compare with a sampler of that one.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Take $\psi(f) = e^{-f^2/8}$, a Gaussian. What is $\theta(c)$? Is the log weight
# bounded, and does it have a maximum at 0?

# %% tags=["hide-cell"]
# θ(c) = −ψ′(c)/(c ψ(c)) = ¼ for every c: the same precision for every label. The log weight is
# −f²/8 + log cosh(f/2), which is even, 0 at 0 and falls from there: no mode far out.
f = np.linspace(0, 20, 401)
of_gaussian = -(f**2) / 8 + np.logaddexp(f / 2, -f / 2) - np.log(2)
assert np.isclose(of_gaussian[0], 0)
assert (np.diff(of_gaussian) < 0).all()

# %% [markdown]
# **Exercise 2.** The ELBO of the Gamma model is higher by more than fifteen nats.
# Someone reads this as a Bayes factor of $e^{15}$ for it. Which number should be compared instead,
# and which model do the labels favour?

# %% tags=["hide-cell"]
# The log probability of the labels: the log evidence less log Z, with Z the mass of the prior.
favour = log_probability["logistic"] - log_probability["Gamma"]
print(f"log Bayes factor for the logistic model: {favour:.1f}")
assert favour > 0

# %% [markdown]
# **Exercise 3.** The far modes for $N$ instances alike are near $Nv/2$. Derive how high they are
# above the mode at 0, to leading order in $N$, and check with the figure's $N = 30$, $v = 4$.

# %% tags=["hide-cell"]
# Far out a log weight is about |c|/2 − log 2 less a logarithm, so that the sum is −c²/2v + N|c|/2,
# with its maximum N²v/8 at c = Nv/2. The logarithms take away what grows like N log N.
leading = 30**2 * VARIANCE / 8
by_grid = log_prior_of_alike(np.linspace(0, 90, 9001), 30, GammaScaleMixture(1.0, 3.0)).max()
lower_order = 30 * (np.log(1 + 60**2 / 6) + np.log(2))
print(
    f"leading order {leading:.0f}, less N log terms {leading - lower_order:.0f}, is {by_grid:.0f}"
)
assert abs(by_grid - (leading - lower_order)) < 0.05 * leading

# %% [markdown]
# **Exercise 4.** Pareto $\hat k$ compares $q$ with its own model at draws of $q$. Give $q = N(0,
# 1)$ and an unnormalised target density with two modes, $e^{-x^2/2} + 10^{6} e^{-(x - 20)^2/2}$.
# What do importance ratios at a thousand draws of $q$ look like?

# %% tags=["hide-cell"]
draws = np.random.default_rng(1).standard_normal(1000)
log_ratio = np.logaddexp(0, np.log(1e6) - (draws - 20) ** 2 / 2 + draws**2 / 2)
print(f"ratios from {np.exp(log_ratio.min()):.6f} to {np.exp(log_ratio.max()):.6f}")
# All are 1: no draw sees the second mode, which has almost all of the mass.
np.testing.assert_allclose(np.exp(log_ratio), 1)
