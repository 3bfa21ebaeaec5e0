# %% [markdown]
# # 2. A bound and its posterior
#
# A Gaussian prior and a logistic likelihood are not conjugate: their product is no Gaussian, and
# its integral has no closed form. There are two ways round that, one by convexity and one by an
# auxiliary random variable. This notebook shows that they are the same, what they give, and what
# they cost. The problem is so small that the exact posterior can be summed on a grid.
#
#     python examples/02_a_bound_and_its_posterior.py [--toy]

# %% [markdown]
# **You will learn**
#
# - how a parabola below log σ makes a Gaussian posterior,
# - why Jaakkola's bound and Pólya-Gamma variables give the same algorithm,
# - how much narrower than the exact posterior its answer is, and when.

# %%
# %matplotlib inline
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import plot_with_slider
from milzoo.inference import coordinate_ascent, grid, keep_programs
from milzoo.models import RBF, VGPMIL, ProbitGPMIL
from milzoo.models.parts.polya_gamma import PolyaGamma
from scipy.special import expit, ndtri

keep_programs()

IS_TOY = "--toy" in sys.argv
SIZES = (1, 4) if IS_TOY else (1, 2, 4, 8, 16)
NUM_POINTS = 61 if IS_TOY else 151

# %% [markdown]
# ## First way: a parabola below the curve
#
# $\log \sigma(x) - x/2$ is even, and convex as a function of $x^2$. So its tangent in $x^2$ lies
# below it everywhere. In $x$ the tangent is a parabola, and a parabola in a logarithm is a
# Gaussian:
#
# $$\log \sigma(x) \ge \log \sigma(c) + \frac{x - c}{2} - \frac{\lambda(c)}{2} (x^2 - c^2),
# \qquad \lambda(c) = \frac{\tanh(c/2)}{2c}$$
#
# with equality at $x = \pm c$ (Jaakkola and Jordan, 2000). Other papers write $\xi$ for $c$. Drag
# the slider below: the parabola touches the curve at the two dots, and lies below it elsewhere.


# %%
def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def precision(c):
    """λ(c), the curvature of the parabola."""
    return np.tanh(c / 2) / (2 * c)


def jaakkola(x, c):
    return log_sigmoid(c) + (x - c) / 2 - precision(c) / 2 * (x**2 - c**2)


x = np.linspace(-6, 6, 401)
for c in (0.5, 1.5, 4.0):
    assert (jaakkola(x, c) <= log_sigmoid(x) + 1e-12).all()
    np.testing.assert_allclose(jaakkola(np.array([-c, c]), c), log_sigmoid(np.array([-c, c])))

# %%
frames = [pd.DataFrame({"x": x, "nats": log_sigmoid(x), "curve": "log σ(x)"})]
dots = []
for c in np.linspace(0.25, 5, 20).tolist():
    frames.append(pd.DataFrame({"x": x, "nats": jaakkola(x, c), "c": c, "curve": "bound"}))
    ends = np.array([-c, c])
    dots.append(pd.DataFrame({"x": ends, "nats": log_sigmoid(ends), "c": c, "curve": "bound"}))
curves = pd.concat(frames)
plot_with_slider(
    curves[curves["nats"] > -9],
    x="x",
    y="nats",
    slider="c",
    colour="curve",
    points=pd.concat(dots),
    start=1.5,
)

# %% [markdown]
# ## Second way: one more random variable
#
# There is a distribution $\mathrm{PG}(1, 0)$ of positive numbers $\omega$ under which the logistic
# function is a mixture of Gaussians in $x$ (Polson, Scott and Windle, 2013):
#
# $$\sigma(x) = \tfrac12 e^{x/2}\, \mathrm{E}_\omega\, e^{-\omega x^2 / 2}$$
#
# Given $\omega$, the likelihood is Gaussian in $x$. Given $x$, $\omega$ is $\mathrm{PG}(1, |x|)$.
# Gibbs sampling alternates between the two. Here is the identity, by a million draws:

# %%
with jax.enable_x64(True):
    omega = np.asarray(PolyaGamma(1, 0.0).sample(jax.random.key(0), (10**6,)))
for value in (-3.0, 0.5, 2.0):
    mixed = 0.5 * np.exp(value / 2) * np.exp(-omega * value**2 / 2)
    error, exactly = mixed.std() / 1000, np.exp(log_sigmoid(value))
    print(f"σ({value:+}) = {exactly:.5f}, by draws {mixed.mean():.5f} ± {error:.5f}")
    assert abs(mixed.mean() - exactly) < 5 * error

# %% [markdown]
# ## They are one
#
# For variational inference take $q(\omega) = \mathrm{PG}(1, c)$. The lower bound on
# $\log \sigma(x)$ is
#
# $$\frac{x}{2} - \log 2 - \frac{x^2}{2} \mathrm{E}_q\, \omega
# - \mathrm{KL}\big(\mathrm{PG}(1, c)\,\|\,\mathrm{PG}(1, 0)\big)$$
#
# The mean of $\mathrm{PG}(1, c)$ is $\lambda(c)$, and the divergence is $\log\cosh(c/2) -
# \tfrac{c^2}{2} \lambda(c)$. That is Jaakkola's bound, term by term:


# %%
def by_polya_gamma(x, c):
    divergence = np.log(np.cosh(c / 2)) - c**2 / 2 * precision(c)
    return x / 2 - np.log(2) - x**2 / 2 * precision(c) - divergence


for c in (0.5, 1.5, 4.0):
    np.testing.assert_allclose(by_polya_gamma(x, c), jaakkola(x, c), atol=1e-12)
    with jax.enable_x64(True):
        mean = float(jnp.mean(PolyaGamma(1, c).sample(jax.random.key(1), (10**5,))))
    print(f"c = {c}: mean of draws {mean:.4f}, λ(c) = {precision(c):.4f}")
    assert abs(mean / precision(c) - 1) < 0.02

# %% [markdown]
# So the parabola's point of contact $c$ and the parameter of $q(\omega)$ are the same number.
# "Jaakkola" and "Pólya-Gamma variational inference" are two names of one algorithm. The second name
# tells more: it is mean field, $q(u)\,q(\omega)$, in a proper model. So its bound is an ELBO, and
# its Gibbs sampler is exact.

# %% [markdown]
# ## What it costs
#
# The bound is tight where $x$ is near $\pm c$. A wide posterior pays for that. To see how much,
# take a problem in two unknown numbers: forty bags, `VGPMIL` with two inducing points. On a grid of
# two numbers the exact posterior and its evidence are sums.


# %%
def problem(bag_size):
    """Forty bags of so many instances each, labels drawn from the model."""
    design = simulate_instances(40, bag_size, num_features=1, seed=1)
    # The larger the bag, the rarer a positive instance: about half of the bags are positive.
    chance = 1 - 0.5 ** (1 / bag_size)
    mean = np.log(chance / (1 - chance))
    model = VGPMIL(RBF(2.0, 1.0), np.array([[-0.7], [0.7]]), mean=float(mean))
    return model, simulate(model, design, seed=3)[0]


model, bags = problem(4)
exact = grid(model, bags, seed=0, num_points=NUM_POINTS, num_draws=2000)
closed = coordinate_ascent(model, bags, seed=0, num_draws=2000)
print(f"log evidence {exact.elbo[-1]:.3f}, closed form's bound {closed.elbo[-1]:.3f}")
assert closed.elbo[-1] < exact.elbo[-1]

# %% slideshow={"slide_type": "slide"}
figure = Figure(figsize=(5.2, 4.6), layout="constrained")
panel = figure.subplots()
for posterior, colour, name in ((exact, "#56B4E9", "exact"), (closed, "#D55E00", "closed form")):
    first, second = posterior.stored_draws()["inducing_value"].T
    panel.scatter(first, second, s=5, color=colour, alpha=0.35, label=name, edgecolors="none")
panel.set(xlabel="f at −0.7", ylabel="f at 0.7", aspect="equal")
panel.legend(frameon=False, markerscale=4)
figure

# %% [markdown]
# The closed form lies in the middle of the exact posterior. How much too narrow it is depends on
# the number of instances in a bag:

# %%
rows = []
for bag_size in SIZES:
    model, bags = problem(bag_size)
    exact = grid(model, bags, seed=0, num_points=NUM_POINTS, num_draws=2000)
    closed = coordinate_ascent(model, bags, seed=0, num_draws=2000)
    sd = [one.stored_draws()["inducing_value"].std(axis=0) for one in (exact, closed)]
    rows.append((bag_size, (sd[1] / sd[0]).mean(), exact.elbo[-1] - closed.elbo[-1]))
    print(
        f"{bag_size:2d} instances a bag: sd {rows[-1][1]:.2f} of the exact one, "
        f"bound {rows[-1][2]:.2f} nats below the evidence"
    )

# %% [markdown]
# With one instance in each bag this is plain classification, where the sds are right to a few per
# cent. In larger bags the logistic function is not all that is bounded. The labels of the instances
# are unknown too, and $q$ treats them as independent of $f$: each of many instances, witness or
# not, counts as if its label had been seen.

# %%
ratios = [ratio for _, ratio, _ in rows]
assert ratios[0] > 0.85
assert ratios[-1] < 0.8
assert all(gap > 0 for _, _, gap in rows)

# %% [markdown]
# ## A layer less
#
# The bound on the logistic function can be avoided. Put a probit in its place: an instance has a
# latent utility $g_n \sim N(f_n, 1)$, and a bag is positive if its largest utility is above 0 (Wang
# and Pinar, 2021). Then $q(g)$ of a bag is a product of normals, truncated to the side of its
# label. No likelihood is bounded, and only the mean field
# $q(u)\,q(g)$ remains. Is the approximation better for it?

# %%
direct = []
for bag_size in SIZES:
    logistic, bags = problem(bag_size)
    same_chance = float(ndtri(expit(logistic.mean)))
    model = ProbitGPMIL(logistic.kernel, logistic.inducing_points, mean=same_chance)
    exact = grid(model, bags, seed=0, num_points=NUM_POINTS, num_draws=2000)
    closed = coordinate_ascent(model, bags, seed=0, num_draws=2000)
    sd = [one.stored_draws()["inducing_value"].std(axis=0) for one in (exact, closed)]
    direct.append((bag_size, (sd[1] / sd[0]).mean(), exact.elbo[-1] - closed.elbo[-1]))
    print(
        f"{bag_size:2d} instances a bag: sd {direct[-1][1]:.2f} of the exact one, "
        f"bound {direct[-1][2]:.2f} nats below the evidence"
    )
for (_, ratio, gap), (_, ratio_before, gap_before) in zip(direct, rows, strict=True):
    assert ratio < ratio_before and 0 < gap < gap_before / 2

# %% [markdown]
# Its bound is far nearer to the evidence, but its sds are even smaller, for bags of every size.
# The precision of this $q$ is $I + \sum_n V_n V_n^\top / s_n^2$ whatever the labels say: every
# utility counts as seen. A tighter bound does not promise a better posterior.
#
# The loss can be measured, as here, and corrected (`importance_resample`), or avoided (`nuts`,
# `gibbs`). The next notebook shows a bound that belongs to another model than the one in mind.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let $x \sim N(m, v)$ under $q$. Which $c$ makes the expected bound
# $\mathrm{E}_q\,$`jaakkola(x, c)` largest? Guess from the two points of contact, then check with
# $m = 1$, $v = 2$.

# %% tags=["hide-cell"]
m, v = 1.0, 2.0
candidates = np.linspace(0.1, 5, 4901)
second_moment = m**2 + v  # the bound needs two moments of x
expected = (
    log_sigmoid(candidates)
    + (m - candidates) / 2
    - precision(candidates) / 2 * (second_moment - candidates**2)
)
best = candidates[expected.argmax()]
print(f"best c {best:.3f}, and √(m² + v) = {np.sqrt(second_moment):.3f}")
np.testing.assert_allclose(best, np.sqrt(second_moment), atol=2e-3)

# %% [markdown]
# **Exercise 2.** $\lambda(c)$ falls in $c$. What does that say about an observation whose latent
# value is surely large? What is the most that one label can add to the precision of $x$?

# %% tags=["hide-cell"]
# λ(c) is the precision that the label adds. It is largest at c = 0, where it is ¼. A label whose
# latent value is surely large was to be expected, and adds little.
values = precision(np.array([1e-4, 1.0, 5.0, 20.0]))
print(values.round(3))
assert (np.diff(values) < 0).all()
np.testing.assert_allclose(values[0], 0.25, atol=1e-6)

# %% [markdown]
# **Exercise 3.** Write the Gibbs sampler for one positive label and the prior $x \sim N(0, 1)$:
# draw $\omega \mid x$, then $x \mid \omega$, which is $N(1/2 / (1 + \omega), 1 / (1 + \omega))$.
# Compare its mean of $x$ with the exact one, by a sum over a grid of $x$.

# %% tags=["hide-cell"]
fine = np.linspace(-8, 8, 4001)
density = np.exp(log_sigmoid(fine) - fine**2 / 2)
exact_mean = (fine * density).sum() / density.sum()
random = np.random.default_rng(0)
chains = np.zeros(20_000)  # side by side, thirty steps each
with jax.enable_x64(True):
    for key in jax.random.split(jax.random.key(2), 30):
        omega = np.asarray(PolyaGamma(1, jnp.abs(chains)).sample(key))
        chains = 0.5 / (1 + omega) + random.standard_normal(len(chains)) / np.sqrt(1 + omega)
error = chains.std() / np.sqrt(len(chains))
print(f"exact mean {exact_mean:.4f}, Gibbs {chains.mean():.4f} ± {error:.4f}")
assert abs(chains.mean() - exact_mean) < 4 * error

# %% [markdown]
# **Exercise 4.** A colleague chooses between the logistic and the probit model by their ELBO. With
# bags of one instance, which one would win by the ELBO's distance to its evidence, and which one
# has the better sds? What do you answer?

# %% tags=["hide-cell"]
(_, logistic_ratio, logistic_gap), (_, probit_ratio, probit_gap) = rows[0], direct[0]
print(f"logistic: gap {logistic_gap:.2f} nats, sds {logistic_ratio:.2f} of the exact ones")
print(f"probit: gap {probit_gap:.2f} nats, sds {probit_ratio:.2f} of the exact ones")
# The smaller gap comes with the worse sds: the gap is one number about all of q, and says nothing
# about the width of one margin.
assert probit_gap < logistic_gap
assert abs(1 - probit_ratio) > abs(1 - logistic_ratio)
