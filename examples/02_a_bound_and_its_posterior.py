# %% [markdown]
# # 2. A bound and its posterior
#
# A Gaussian prior and a logistic likelihood do not fit together: their product is no Gaussian, and
# has no integral that anyone can write down. Two ways round that were found, twenty years apart,
# one by convexity and one by adding a random variable. This notebook shows that they are the same,
# what they give, and what they cost, on a problem so small that the exact answer can be summed up.
#
#     python examples/02_a_bound_and_its_posterior.py [--toy]

# %%
# %matplotlib inline
import sys

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from milzoo.datasets import simulate, simulate_instances
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
# with equality at $x = \pm c$ (Jaakkola and Jordan, 2000).


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
figure = Figure(figsize=(7, 3.6), layout="constrained")
panel = figure.subplots()
panel.plot(x, log_sigmoid(x), color="black", lw=2, label="log σ(x)")
for c, colour in ((1.5, "#0072B2"), (4.0, "#D55E00")):
    panel.plot(x, jaakkola(x, c), color=colour, label=f"bound, c = {c}")
    panel.plot([-c, c], log_sigmoid(np.array([-c, c])), "o", color=colour)
panel.set(xlabel="x", ylim=(-9, 0.5))
panel.legend(frameon=False, loc="lower right")
figure

# %% [markdown]
# ## Second way: one more random variable
#
# There is a law $\mathrm{PG}(1, 0)$ of positive numbers $\omega$ under which the logistic function
# is a mixture of Gaussians in $x$ (Polson, Scott and Windle, 2013):
#
# $$\sigma(x) = \tfrac12 e^{x/2}\, \mathrm{E}_\omega\, e^{-\omega x^2 / 2}$$
#
# Draw $\omega$, and the likelihood is Gaussian in $x$; draw $x$, and $\omega$ has the law
# $\mathrm{PG}(1, |x|)$. Gibbs sampling is nothing but that. The identity, by a million draws:

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
# Do variational inference with the second: take $q(\omega) = \mathrm{PG}(1, c)$. The lower bound on
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
# So the parabola's place of contact $c$ and the tilt of $\omega$'s law are the same number, and
# "Jaakkola" and "Pólya-Gamma variational inference" are two names of one algorithm. What differs is
# what can be said of it: the second is mean field in a true model, $q(u)\,q(\omega)$, so that its
# bound is an ELBO, and its Gibbs sampler is exact.

# %% [markdown]
# ## What it costs
#
# The bound is tight where $x$ is near $\pm c$. A posterior that is spread over $x$ pays. To see how
# much, take a problem in two unknown numbers: forty bags, `VGPMIL` with two inducing points. Two
# numbers can be put on a grid, and the exact posterior and its evidence summed up.


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
# The closed form stands in the middle of the exact posterior, and is too small. How much too small
# depends on how many instances each bag has:

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
# With one instance in each bag this is plain classification, where the bound has served people
# well: the sds are right to a few per cent. In larger bags it is not the logistic function alone
# that is bounded. The labels of the instances are unknown too, and $q$ treats them as independent
# of $f$: each of many instances, witness or not, counts as if its label had been seen.

# %%
ratios = [ratio for _, ratio, _ in rows]
assert ratios[0] > 0.85
assert ratios[-1] < 0.8
assert all(gap > 0 for _, _, gap in rows)

# %% [markdown]
# ## A layer less
#
# The first of the two bounds can be had without. Put a probit in the place of the logistic
# function: an instance has a latent utility $g_n \sim N(f_n, 1)$, and a bag is positive if its
# largest utility is above 0 (Wang and Pinar, 2021). Then $q(g)$ of a bag is a product of normals,
# cut to the side of its label. No likelihood is bounded, and all that is left is mean field,
# $q(u)\,q(g)$. Is the posterior the better one for it?

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
# Its bound is far nearer to the evidence, and its sds are smaller still, for bags of every size.
# The precision of this $q$ is $I + \sum_n V_n V_n^\top / s_n^2$ whatever the labels say: every
# utility counts as seen. A tighter bound is no promise about the posterior.
#
# What is lost is not the bound's fault alone, then, and not a matter of taste: it can be measured,
# as here, and corrected (`importance_resample`), or avoided (`nuts`, `gibbs`). What happens where a
# bound is not even about the model that one has in mind is the next notebook's.
