# %% [markdown]
# # 7. Counting
#
# Not every bag is positive for the sake of one instance. A meeting says yes if most of its members
# do; a field is ill if a good part of its plants are. Here the label of a bag depends on *how many*
# of its instances are positive. Nobody told us which are. So the model sums over every labelling of
# the instances, and a bag of a hundred instances has $2^{100}$ labellings.
#
#     python examples/07_counting.py [--toy]

# %% [markdown]
# **You will learn**
#
# - why a sum over $2^N$ labellings needs only $N + 1$ terms,
# - how the label of a bag changes the probabilities of its instances under three rules,
# - how a wrong rule misleads without a warning, and how new bags reveal it.

# %%
# %matplotlib inline
import itertools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from milzoo.datasets import Bags
from milzoo.diagnostics import plot_with_slider
from milzoo.inference import coordinate_ascent, keep_programs, laplace, nuts
from milzoo.models import AtLeastOne, CardinalityModel, MajorityCardinality, NormalCardinality
from milzoo.models.parts.counting import CountTree, log_partition
from scipy.special import expit, logsumexp
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

keep_programs()

IS_TOY = "--toy" in sys.argv
COLOURS = {"at least one": "#009E73", "majority": "#0072B2", "normal": "#D55E00"}

# %% [markdown]
# ## Three rules
#
# A *cardinality potential* is a pair of functions of the count $c$ of positive instances: $C^-(c)$
# for negative bags and $C^+(c)$ for positive ones, large where label and count agree
# (Hajimirsadeghi and Mori, 2017). With $m$ the size of the bag:
#
# - **at least one**: a positive bag has some positive instance, a negative bag has none. This is
#   the assumption that multiple-instance learning began with;
# - **majority**: half or more in a positive bag, fewer in a negative one;
# - **normal**: about a fraction $\mu$ in a positive bag and about none in a negative one,
#   $C^+ = e^{-(c/m - \mu)^2 / 2\sigma^2}$ and $C^- = e^{-(c/m)^2 / 2\sigma^2}$. We take
#   $\mu = \tfrac12$ and $\sigma = 0.1$, which the paper also uses.

# %%
POTENTIALS = {
    "at least one": AtLeastOne(),
    "majority": MajorityCardinality(),
    "normal": NormalCardinality(mu=0.5, sigma=0.1),
}
SIZE = 10
counts = np.arange(SIZE + 1)


def log_potential(potential, count):
    """log C⁻ and log C⁺ of counts in a bag of ten; −∞ where they are 0."""
    with jax.enable_x64(True):  # JAX has 7 digits otherwise
        return np.asarray(potential(count, np.full_like(count, SIZE)), float)


# Given the count, log C⁺ − log C⁻ are the log odds of the label.
log_odds = {
    name: np.subtract(*log_potential(potential, counts)[::-1])
    for name, potential in POTENTIALS.items()
}
figure = Figure(figsize=(7, 3.4), layout="constrained")
panel = figure.subplots()
for (name, odds), marker in zip(log_odds.items(), "os^", strict=True):
    panel.plot(
        counts, expit(odds), marker + "-", color=COLOURS[name], label=name, lw=1.2, alpha=0.85
    )
panel.set(xlabel="positive instances among ten", ylabel="P(bag positive | count)", xticks=counts)
figure.legend(frameon=False, loc="outside right upper")
figure

# %% [markdown]
# The normal rule may surprise. Its log odds are a straight line, $\mu(c/m - \mu/2)/\sigma^2$: they
# are even at the fraction $\mu/2$, not at $\mu$: a count there is as near to none as to $\mu$.

# %%
line = 0.5 * (counts / SIZE - 0.25) / 0.1**2
np.testing.assert_allclose(log_odds["normal"], line, atol=1e-12)
assert (log_odds["majority"] == np.where(counts >= SIZE / 2, np.inf, -np.inf)).all()

# %% [markdown]
# ## The sum over all labellings
#
# Each instance has a logit $\phi_n = \theta_0 + \theta^\top x_n$, linear in its features. The model
# gives a bag's label $Y$ and the labels $y_1 \dots y_N$ of its instances together the weight
# $C^{(Y)}(\sum_n y_n) \prod_n e^{\phi_n y_n}$. The probability of the bag's label alone is the sum
# over all labellings,
#
# $$P(Y) = \frac{Z^{(Y)}}{Z^+ + Z^-}, \qquad
# Z^{(Y)} = \sum_{y \in \{0, 1\}^N} C^{(Y)}\Big(\sum_n y_n\Big) \prod_n e^{\phi_n y_n}$$
#
# Ten instances have 1,024 labellings, so there we can simply write all of them down.

# %%
phi = np.random.default_rng(0).normal(-0.8, 1.5, SIZE)
labellings = np.array(list(itertools.product((0, 1), repeat=SIZE)))


def by_enumeration(potential):
    """log Z⁻ and log Z⁺, and P(y_n = 1 | Y) for both labels Y."""
    count = labellings.sum(axis=1)
    log_weight = log_potential(potential, count) + labellings @ phi
    log_z = logsumexp(log_weight, axis=1)
    return log_z, np.exp(log_weight - log_z[:, None]) @ labellings


enumerated = {name: by_enumeration(potential) for name, potential in POTENTIALS.items()}
for name, ((negative, positive), _) in enumerated.items():
    print(f"{name}: P(bag positive) = {1 / (1 + np.exp(negative - positive)):.4f}")

# %% [markdown]
# ## Only the count matters
#
# All labellings with the same count have the same $C$. So gather them: let $e_c$ be the sum of
# $\prod_n e^{\phi_n y_n}$ over the labellings with $c$ ones. Then $Z = \sum_c C(c)\, e_c$ has only
# $N + 1$ terms. And the $e_c$ are the coefficients of a polynomial,
#
# $$\prod_n (1 + e^{\phi_n} x) = \sum_c e_c\, x^c$$
#
# because to multiply it out is to decide, for each instance, for the 1 or for the $e^{\phi_n} x$.
# One factor after another, that takes of the order of $N^2$ operations instead of $2^N$.


# %%
def coefficients(logits):
    """e_c, for each count c."""
    product = np.ones(1)
    for logit in logits:
        product = np.convolve(product, [1.0, np.exp(logit)])
    return product


for name, potential in POTENTIALS.items():
    counted = np.log(np.exp(log_potential(potential, counts)) @ coefficients(phi))
    np.testing.assert_allclose(counted, enumerated[name][0], rtol=1e-10)

# %% [markdown]
# The same coefficients are the distribution of the count, $P(c) \propto e_c$. A positive label
# multiplies it by $C^+(c)$. Here $w$ of ten instances look like witnesses ($\phi = 2$) and the
# others do not ($\phi = -2$). Move $w$, and watch what each rule makes of a positive label.


# %%
def distribution_of_count(witnesses):
    """P(count), without a label and given a positive one under each rule."""
    weight = coefficients(np.where(counts[1:] <= witnesses, 2.0, -2.0))
    weights = {"no label": weight}
    for name, potential in POTENTIALS.items():
        weights[name] = weight * np.exp(log_potential(potential, counts)[1])
    return pd.DataFrame(
        {
            "positive instances among ten": np.tile(counts, len(weights)),
            "probability": np.concatenate([one / one.sum() for one in weights.values()]),
            "given a positive label, by": np.repeat(list(weights), len(counts)),
            "witnesses": witnesses,
        }
    )


frames = pd.concat([distribution_of_count(witnesses) for witnesses in counts])
without_witnesses = frames[frames["witnesses"] == 0].groupby("given a positive label, by")
mean_count = without_witnesses[["positive instances among ten", "probability"]].apply(
    lambda rows: rows["positive instances among ten"] @ rows["probability"]
)
assert mean_count["no label"] < mean_count["at least one"] < 2 < 5 < mean_count["majority"]
plot_with_slider(
    frames,
    x="positive instances among ten",
    y="probability",
    slider="witnesses",
    colour="given a positive label, by",
    start=3,
)

# %% [markdown]
# *At least one* hardly changes the distribution once there is a witness. *Majority* cuts off all
# counts below five, even if no instance looks like a witness. *Normal* moves the count towards five
# from either side.
#
# ## Bags of any size
#
# These lines suffice for ten instances. For thousands their numbers overflow. The models here use
# `log_partition`. It multiplies the factors in pairs, then pairs of pairs (a `CountTree`), and
# keeps the scale of the numbers apart. Fourier transforms multiply very long polynomials, so that
# large bags take of the order of $N \log^2 N$ operations.
#
# Is it right? Let all $\phi_n = -1$. Then $e_c / \prod_n(1 + e^{\phi_n})$ is a binomial
# probability. Both sums are tails of the binomial distribution, known to all digits.


# %%
def by_counting(potentials, logits):
    """log Z of one bag: a row for each label under each potential."""
    with jax.enable_x64(True):
        tree = CountTree.for_bags(np.zeros(len(logits), int), 1)
        size = tree.size[tree.count_bag]
        log_c = jnp.concatenate([potential(tree.count, size) for potential in potentials])
        return log_partition(tree, jnp.asarray(logits), log_c)[:, 0]


def timed(size):
    """The majority's sums over a bag of so many equal instances, and the seconds they take."""
    arguments = [MajorityCardinality()], np.full(size, -1.0)
    by_counting(*arguments)  # compiles
    started = time.perf_counter()
    found = np.asarray(by_counting(*arguments))
    return found, time.perf_counter() - started


seconds = {}
for size in (1_000,) if IS_TOY else (1_000, 16_000, 64_000):
    found, seconds[size] = timed(size)
    count = np.arange(size + 1)
    log_mass = binom.logpmf(count, size, 1 / (1 + np.e)) + size * np.log1p(np.exp(-1))
    exactly = [logsumexp(log_mass[2 * count < size]), logsumexp(log_mass[2 * count >= size])]
    np.testing.assert_allclose(found, exactly, rtol=1e-12)
    print(f"{size:6,} instances: {seconds[size]:.3f} s, log odds {found[1] - found[0]:,.4f}")

# %% [markdown]
# Twelve digits are right, even where a majority among a thousand has probability $e^{-123}$. Four
# times as many instances take about four times as long, not sixteen.

# %%
assert -124 < np.subtract(*by_counting([MajorityCardinality()], np.full(1_000, -1.0))[::-1]) < -123
if not IS_TOY:
    assert seconds[64_000] < 16 * seconds[16_000]

# %% [markdown]
# ## How the label of a bag changes its instances
#
# $\log Z^{(Y)}$ also gives the probabilities of the instances, by its derivative:
# $P(y_n = 1 \mid Y) = \partial \log Z^{(Y)} / \partial \phi_n$. A program that can differentiate
# needs no second algorithm. We check both against the 1,024 labellings.


# %% slideshow={"slide_type": "slide"}
def all_rules(logits):
    """log Z of both labels under each rule; twice, to differentiate one and to return the other."""
    log_z = by_counting(list(POTENTIALS.values()), logits)
    return log_z, log_z


with jax.enable_x64(True):
    gradients, log_z = map(np.asarray, jax.jacrev(all_rules, has_aux=True)(jnp.asarray(phi)))
for n, (of_bag, of_instances) in enumerate(enumerated.values()):
    both = slice(2 * n, 2 * n + 2)
    np.testing.assert_allclose(log_z[both], of_bag, rtol=1e-10)
    np.testing.assert_allclose(gradients[both], of_instances, atol=1e-10)
order = np.argsort(phi)
figure = Figure(figsize=(9, 3.4), layout="constrained")
panels = figure.subplots(1, 2, sharey=True)
for label, panel in enumerate(panels):
    panel.plot(expit(phi[order]), "--", color="black", lw=1.2, label="no label: σ(φ)")
    for (name, colour), marker, row in zip(COLOURS.items(), "os^", (0, 2, 4), strict=True):
        panel.plot(gradients[row + label][order], marker + "-", color=colour, lw=1, label=name)
    panel.set(title=("negative bag", "positive bag")[label], xticks=[])
    panel.set_xlabel("the ten instances, by φ")
panels[0].set_ylabel("P(instance positive | label of the bag)")
handles, names = panels[0].get_legend_handles_labels()
figure.legend(handles, names, frameon=False, loc="outside right upper")
figure

# %% [markdown] slideshow={"slide_type": "-"}
# - *At least one*: a negative label decides every instance. This positive label changes next to
#   nothing, as one of the ten is very probably positive anyway.
# - *Majority*: both labels change the probabilities a little.
# - *Normal*: few positive instances in a negative bag, and about half in a positive one.

# %%
at_least_one, majority, normal = gradients[:2], gradients[2:4], gradients[4:]
unconditional = expit(phi)
assert (at_least_one[0] == 0).all()
assert np.abs(at_least_one[1] - unconditional).max() < 0.05
assert (majority[0] < unconditional).all() and (majority[1] > unconditional).all()
few, about_half = normal.sum(axis=1)
print(f"the normal rule expects {few:.1f} and {about_half:.1f} positive instances")
assert few < 2 and 4 < about_half < 6

# %% [markdown]
# ## A vote of digits
#
# Now we learn from labels. Seven handwritten digits make a bag, which is positive if most of them
# are odd. So we know the right rule. We also know the labels of the images, and use them only to
# judge the predictions. The features are eight principal components of the images.

# %%
BAG_SIZE, NUM_BAGS = 7, 256
images, digit = load_digits(return_X_y=True)
chosen = np.random.default_rng(0).permutation(len(images))[: NUM_BAGS * BAG_SIZE]
is_odd = digit[chosen] % 2 == 1
votes = is_odd.reshape(NUM_BAGS, BAG_SIZE).sum(axis=1)
half = NUM_BAGS // 2
components = PCA(8, random_state=0).fit(images[chosen][: half * BAG_SIZE])
bags = Bags.from_arrays(
    components.transform(images[chosen]),
    np.repeat(np.arange(NUM_BAGS), BAG_SIZE),
    (2 * votes > BAG_SIZE).astype(int),
)
train, test = bags.select(np.arange(half)), bags.select(np.arange(half, NUM_BAGS))
train, test = train.standardize(), test.standardize(train)
is_odd_in_test = is_odd[half * BAG_SIZE :]
print(f"{train.labels.mean():.0%} of the bags to learn from are positive; {is_odd.mean():.0%} odd")

# %% [markdown]
# The unknowns are the weights $\theta$, one for each feature, and $\theta_0$. The model has no
# closed-form updates, and `coordinate_ascent` says so. `nuts` draws from the exact posterior.

# %%
models = {
    name: CardinalityModel.for_bags(train, potential, intercept_scale=3.0)
    for name, potential in POTENTIALS.items()
}
try:
    coordinate_ascent(models["majority"], train, seed=0)
except NotImplementedError as refusal:
    print(refusal)


def sampled(model):
    posterior = nuts(model, train, seed=0, num_warmup=200, num_samples=1000, num_chains=2)
    print(f"{posterior.status.sentence}; {posterior.seconds:.1f} s")
    assert posterior.status.kind == "converged"
    return posterior


posteriors = {"majority": sampled(models["majority"])}

# %% [markdown]
# `laplace` is quicker: a Gaussian at the mode. Under this rule it is a fair approximation. Its
# means have an error of about a quarter of a posterior sd, and its sds are a little too small.


# %%
def against_exact(posterior):
    """Errors of the means of all weights in posterior sds, and ratios of the sds."""
    ours, exactly = (one.stored_draws()["weights"] for one in (posterior, posteriors["majority"]))
    error = (ours.mean(axis=0) - exactly.mean(axis=0)) / exactly.std(axis=0)
    return error, ours.std(axis=0) / exactly.std(axis=0)


if not IS_TOY:
    gaussian = laplace(models["majority"], train, seed=0)
    error, ratio = against_exact(gaussian)
    print(f"{gaussian.status.sentence}; {gaussian.seconds:.2f} s")
    print(f"errors of means, in posterior sds: {error.round(2)}; ratios of sds: {ratio.round(2)}")
    assert np.abs(error).mean() < 0.4
    assert 0.8 < ratio.mean() < 1.0

# %% [markdown]
# ## The wrong rule
#
# Somebody else has the same bags, and believes that one odd image makes a bag positive. These
# chains mix too, and nothing reports trouble. But by this rule every image in a negative bag is
# even, and nearly half of the bags are negative. So the model infers that few images are odd.


# %%
def log_loss(probability, truth):
    """−log of the predicted probability of the truth, for each bag or image."""
    return -np.log(np.where(truth, probability, 1 - probability))


posteriors["at least one"] = sampled(models["at least one"])
if not IS_TOY:
    posteriors["normal"] = laplace(models["normal"], train, seed=0)
predictions = {name: posterior.predict(test) for name, posterior in posteriors.items()}
loss = {}
for name, prediction in predictions.items():
    of_image = prediction.instance_probability
    loss[name] = log_loss(prediction.bag_probability, test.labels == 1)
    print(
        f"{name}: {of_image.mean():.0%} of images are odd, it believes "
        f"(truth {is_odd_in_test.mean():.0%}); log loss {loss[name].mean():.2f} for bags, "
        f"{log_loss(of_image, is_odd_in_test).mean():.2f} for images; "
        f"area under the curve for images {roc_auc_score(is_odd_in_test, of_image):.2f}"
    )

# %%
edges = np.linspace(0, 1, 21)
figure = Figure(figsize=(9, 3.2), layout="constrained")
panels = figure.subplots(1, 2, sharey=True)
for name, panel in zip(("majority", "at least one"), panels, strict=True):
    probability = predictions[name].instance_probability
    panel.hist(probability[~is_odd_in_test], edges, color="#56B4E9", alpha=0.75, label="even")
    panel.hist(probability[is_odd_in_test], edges, color="#E69F00", alpha=0.75, label="odd")
    panel.set(title=f"rule: {name}", xlabel="P(image is odd)")
panels[0].set_ylabel("images")
handles, names = panels[0].get_legend_handles_labels()
figure.legend(handles, names, frameon=False, loc="outside right upper")
figure

# %% [markdown]
# With the right rule, 128 labels of bags tell odd images from even ones. With the wrong rule,
# nearly all images are called even. Nobody can check the instances: they are the least reliable.
#
# The bags can be checked. New bags with labels show which rule fits. They need no labels of images.

# %%
believed = {name: one.instance_probability for name, one in predictions.items()}
truth = is_odd_in_test.mean()
assert abs(believed["majority"].mean() - truth) < 0.05
assert believed["at least one"].mean() < 0.5 * truth
assert (
    log_loss(believed["at least one"], is_odd_in_test).mean()
    > 2 * log_loss(believed["majority"], is_odd_in_test).mean()
)
worse = loss["at least one"] - loss["majority"]
margin = worse.std(ddof=1) / np.sqrt(test.num_bags)
print(f"log loss of a new bag: worse by {worse.mean():.3f} ± {margin:.3f} under the wrong rule")
assert worse.mean() > 2 * margin

# %% [markdown]
# A posterior, exact or not, answers within its model. The rule for a bag's label is a part of the
# model that no engine questions. Held-out bags do.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Double $\sigma$ in the normal rule. At which count is the label undecided now, and
# how much flatter is the curve of the first figure?

# %% tags=["hide-cell"]
negative, positive = log_potential(NormalCardinality(mu=0.5, sigma=0.2), counts)
# σ enters the log odds as 1/σ² only: they are 0 at the same count, and a quarter elsewhere.
np.testing.assert_allclose(positive - negative, log_odds["normal"] / 4, atol=1e-12)

# %% [markdown]
# **Exercise 2.** Under *at least one*, a negative bag has no positive instance. Derive
# $P(y_n = 1 \mid Y = 1)$ from that, and compare it with the enumeration. Why is it nearly
# $\sigma(\phi_n)$ here?

# %% tags=["hide-cell"]
some_positive = 1 - np.prod(1 - expit(phi))
by_bayes = expit(phi) / some_positive  # a positive instance makes its bag positive
np.testing.assert_allclose(by_bayes, enumerated["at least one"][1][1], rtol=1e-10)
print(f"one of the ten is positive with probability {some_positive:.3f}, before any label")
assert some_positive > 0.99

# %% [markdown]
# **Exercise 3.** Find the expected count of a positive bag under *majority* in two ways: from the
# coefficients $e_c$, and from the gradients. Why do they agree?

# %% tags=["hide-cell"]
weight = coefficients(phi) * np.exp(log_potential(MajorityCardinality(), counts)[1])
expected_count = counts @ weight / weight.sum()
# The count is the sum of the labels, and its mean is the sum of their probabilities.
np.testing.assert_allclose(expected_count, majority[1].sum(), rtol=1e-10)
assert expected_count > 5 > unconditional.sum()

# %% [markdown]
# **Exercise 4.** Suppose that each image is odd with the same probability $q$, and that *at least
# one* is right. Which $q$ explains the fraction of negative bags in `train`? Compare it with the
# fraction of odd images that the wrong rule believes in.

# %% tags=["hide-cell"]
negative_fraction = 1 - train.labels.mean()
q = 1 - negative_fraction ** (1 / BAG_SIZE)  # all seven even: (1 − q)⁷
print(f"q = {q:.3f}; the wrong rule believes {believed['at least one'].mean():.3f}")
assert abs(q - believed["at least one"].mean()) < 0.05
