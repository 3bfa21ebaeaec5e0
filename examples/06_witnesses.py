# %% [markdown]
# # 6. Witnesses, and how many kinds of them
#
# A *witness* is an instance that makes its bag positive. The models before this one ask where a
# function is high. This one asks what witnesses look like. It describes all instances: the ordinary
# ones come from one mixture of clusters, witnesses from another. A negative bag holds ordinary
# instances only. A positive bag holds at least one witness, but we are not told which. The number
# of clusters is unknown.
#
# That is `DPMIL`, *Dirichlet process multiple-instance learning* (Kandemir and Hamprecht, 2014).
# The notebook shows its parts: the clusters, the rule about witnesses, two engines, and which
# questions have an answer although clusters have no names.
#
#     python examples/06_witnesses.py [--toy]

# %% [markdown]
# **You will learn**
#
# - how a prior can leave the number of clusters open,
# - how one clear witness explains a label, so that other instances need not,
# - which averages over draws make sense although clusters have no names.

# %%
# %matplotlib inline
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
from arviz import rhat
from matplotlib.figure import Figure
from milzoo.datasets import Bags, load
from milzoo.diagnostics import plot_with_slider
from milzoo.inference import coordinate_ascent, gibbs, keep_programs
from milzoo.models import DPMIL
from milzoo.models.parts.witnesses import WitnessLabels
from scipy.special import expit
from scipy.stats import gamma, norm
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

keep_programs()

IS_TOY = "--toy" in sys.argv
NUM_DRAWS = 200 if IS_TOY else 1000
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"

# %% [markdown]
# ## A stick that is broken for ever
#
# How to put a prior on clusters without their number? Take a stick of length 1. Break off a random
# fraction $v_1 \sim \mathrm{Beta}(1, \alpha)$: the weight of the first cluster. Break off a
# fraction
# $v_2$ of the rest, and so on. The mean weights fall by the same factor at each break:
#
# $$\mathrm{E}\,\pi_k = \frac{1}{1 + \alpha} \Big(\frac{\alpha}{1 + \alpha}\Big)^{k - 1}$$
#
# There is no end to it, but $N$ instances can only lie in so many clusters. On average these are
# $\sum_{i < N} \alpha/(\alpha + i)$, which grows like a logarithm: some large clusters, a few
# small ones, and always a chance of another. The paper takes $\alpha = 2$.

# %%
ALPHA, NUM_STICKS = 2.0, 20000
long_stick = DPMIL(np.zeros(1), np.ones(1), 2.0, concentration=ALPHA, max_components=100)
random = np.random.default_rng(0)
sticks = random.beta(1, ALPHA, size=(NUM_STICKS, 1, long_stick.max_components - 1))
weights = long_stick.weights({"stick": sticks})[:, 0]
expected = (ALPHA / (1 + ALPHA)) ** np.arange(4) / (1 + ALPHA)
error = weights[:, :4].std(axis=0) / np.sqrt(NUM_STICKS)
print("mean weights", weights[:, :4].mean(axis=0).round(3), "expected", expected.round(3))
assert (np.abs(weights[:, :4].mean(axis=0) - expected) < 5 * error).all()

for num_instances in (20, 200, 2000):
    counts = np.array(
        [np.sum(random.multinomial(num_instances, one) > 0) for one in weights[:1000]]
    )
    mean = np.sum(ALPHA / (ALPHA + np.arange(num_instances)))
    print(f"{num_instances:4d} instances: {counts.mean():.1f} clusters, expected {mean:.1f}")
    assert abs(counts.mean() - mean) < 5 * counts.std() / np.sqrt(len(counts))

# %% [markdown]
# ## At least one
#
# Suppose we knew the clusters, so that each instance of a positive bag, taken by itself, is a
# witness with probability $\rho_n$. The bag says: one at least. Of the $2^N$ labellings one, all
# ordinary, is ruled out, and the others grow in proportion:
#
# $$P(r_n = 1 \mid \text{one at least}) = \frac{\rho_n}{1 - \prod_j (1 - \rho_j)}$$
#
# Here it is by the formula, as in the library, and by a sum over all labellings:

# %%
alone = np.array([0.02, 0.1, 0.1, 0.3])
labellings = np.array(list(product([0, 1], repeat=len(alone))))
weight = np.prod(np.where(labellings == 1, alone, 1 - alone), axis=1) * (labellings.sum(axis=1) > 0)
by_hand = weight @ labellings / weight.sum()
one_bag, log_odds = np.zeros(len(alone), int), np.log(alone / (1 - alone))
by_library = np.asarray(WitnessLabels(log_odds, one_bag, np.array([True]), 1).mean)
print("alone ", alone)
print("in bag", by_library.round(3))
np.testing.assert_allclose(by_library, by_hand, rtol=1e-5)

# %% [markdown]
# Nothing is decided: no instance is picked as the witness. The authors do decide. In each round
# they set every $r_n$ to its better value. If a bag has no witness then, they flip one back. A
# later section shows the cost.
#
# ## Explaining away
#
# Instances have one feature $x$. Ordinary ones lie around −1.5 and 1.5, witnesses around −4 and 4.
# At 2.75, on the border, $\rho = ½$. A positive bag holds an instance there and another one. Drag
# the other one. While it is ordinary, the instance at 2.75 has to be the witness. Once the other is
# clearly a witness, it explains the label, and the instance at 2.75 falls back to ½.

# %%
BORDER, CLEAR = 2.75, 4.2


def alone_is_witness(x):
    """ρ(x): probability of a witness, without the label of a bag."""
    ordinary, witness = (
        norm.pdf(x, -centre, 0.6) + norm.pdf(x, centre, 0.6) for centre in (1.5, 4.0)
    )
    return witness / (ordinary + witness)


x = np.linspace(0.5, 4.5, 81)
curve = pd.DataFrame({"x": x, "P(witness)": alone_is_witness(x), "what": "without a bag label"})
dots = []
for other in x[::4].tolist():
    rho = alone_is_witness(np.array([BORDER, other]))
    in_bag = rho / (1 - np.prod(1 - rho))
    for place, probability, what in zip(
        (BORDER, other), in_bag, ("instance at 2.75", "the other instance"), strict=True
    ):
        row = {"x": place, "P(witness)": probability, "what": what, "other at": other}
        dots.append(row)
dots = pd.DataFrame(dots)
of_border = dots.loc[dots["what"] == "instance at 2.75", "P(witness)"].to_numpy()
assert (np.diff(of_border) < 0).all()
assert of_border[0] > 0.99 and of_border[-1] < 0.51
plot_with_slider(
    curve.assign(**{"other at": np.nan}),
    x="x",
    y="P(witness)",
    slider="other at",
    colour="what",
    points=dots,
)

# %% [markdown]
# ## A scene on a line
#
# Now the clusters are unknown. Forty bags of six are simulated from that scene, and in positive
# bags half of the instances are witnesses. Two bags are added by hand. Both hold the same instance
# at 2.75, on the border between ordinary and witness. One of them has a clear witness besides.


# %%
def scene(num_bags, witness_fraction, seed):
    """Bags of six, labels in turn; a positive bag has a witness in any case."""
    random = np.random.default_rng(seed)
    is_witness = random.uniform(size=(num_bags, 6)) < witness_fraction
    is_witness[:, 0] |= ~is_witness.any(axis=1)
    is_witness[::2] = False
    side = random.choice([-1.0, 1.0], size=is_witness.shape)
    places = np.where(is_witness, 4.0, 1.5) * side + 0.6 * random.standard_normal(side.shape)
    labels = is_witness.any(axis=1).astype(int)
    return Bags.from_padded(places[:, :, None], labels, y_inst=is_witness.astype(int))


ordinary = [-1.6, -1.4, 1.3, 1.5]
by_hand = [np.array([[BORDER], [other], *[[x] for x in ordinary]]) for other in (1.7, CLEAR)]
drawn = scene(40, 0.5, seed=1)
bags = Bags.from_list([*drawn.to_list(), *by_hand], labels=[*drawn.labels, 1, 1])
model = DPMIL.for_bags(bags, max_components=6)
posteriors = {
    "coordinate ascent": coordinate_ascent(model, bags, seed=0),
    "Gibbs": gibbs(model, bags, seed=0, num_warmup=NUM_DRAWS // 2, num_samples=NUM_DRAWS),
}
for name, posterior in posteriors.items():
    print(f"{name}: {posterior.status.sentence}")

# %% slideshow={"slide_type": "slide"}
figure = Figure(figsize=(8.5, 4.6), layout="constrained")
above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
of_bag, place = drawn.labels[drawn.bag_index], drawn.instances[:, 0]
rows = {
    "in a negative bag": (of_bag == 0, BLUE),
    "ordinary, in a positive one": ((of_bag == 1) & (drawn.instance_labels == 0), GREY),
    "witness": (drawn.instance_labels == 1, ORANGE),
}
for row, (chosen, colour) in enumerate(rows.values()):
    above.plot(place[chosen], np.full(chosen.sum(), -row), "|", color=colour, ms=12)
above.set_yticks([0, -1, -2], list(rows))
above.set_ylim(-2.7, 0.7)
free = bags.instances[bags.labels[bags.bag_index] == 1, 0]
for (name, posterior), colour in zip(posteriors.items(), (ORANGE, "black"), strict=True):
    draws = posterior.draws_with_estimands["instance_probability"]
    low, high = draws.quantile([0.05, 0.95], ("chain", "draw")).to_numpy()
    below.vlines(free, low, high, color=colour, lw=0.6, alpha=0.5)
    below.plot(free, draws.mean(("chain", "draw")), ".", color=colour, label=name)
below.set(xlabel="feature", ylabel="P(witness)", ylim=(0, 1.03))
figure.legend(frameon=False, loc="outside lower center", ncols=2)
figure

# %% [markdown]
# Dots are the instances of positive bags, lines their 90 % intervals. No label of an instance was
# given, and yet the borders are found.
#
# ## The same instance in two bags
#
# At 2.75 there are two dots for each engine. Where that instance is the only candidate, it has to
# be the witness. Where a clear witness explains the label, it may be either.

# %%
for name, posterior in posteriors.items():
    draws = posterior.draws_with_estimands["instance_probability"]
    probability = draws.mean(("chain", "draw")).to_numpy()
    only_candidate, beside_a_clear_one = probability[-12], probability[-6]
    print(f"{name}: {only_candidate:.2f} alone, {beside_a_clear_one:.2f} beside a clear witness")
    assert only_candidate > beside_a_clear_one + 0.05
    # That order holds in every draw: it follows from the rule.
    assert (draws[..., -12] > draws[..., -6]).all()

# %% [markdown]
# ## Clusters have no names
#
# What is the mean of the first cluster of witnesses? Coordinate ascent has an answer. Gibbs
# sampling has one too. They have nothing to do with each other:

# %%
first = posteriors["Gibbs"].tree["posterior"]["mean"][:, :, 1, 0, 0]
variational = posteriors["coordinate ascent"].approximation
sampled = first.to_numpy()
print(f"coordinate ascent: {variational.mean[1, 0, 0]:+.2f}; Gibbs: {sampled.mean():+.2f}")
near = np.mean(np.abs(sampled - sampled.mean()) < 1)
print(f"fraction of draws within 1 of their own mean: {near:.2f}; R̂ {float(rhat(first)):.3f}")
assert abs(variational.mean[1, 0, 0]) > 2.5
assert abs(sampled.mean()) < 1.5
assert near < 0.15
assert float(rhat(first)) < 1.05

# %% [markdown]
# Nothing is wrong with the chain, and $\hat{R}$ finds nothing. To call the left cluster 1 and the
# right one 2, or the other way round, is the same description of the same data, and the sampler
# goes from one to the other as it should. Only the average of a name that changes hands is
# meaningless: a place between the clusters, where there is no witness. Coordinate ascent keeps one
# naming out of many.
#
# Quantities that do not depend on names may be averaged: whether an instance is a witness, the
# density of a bag, the number of clusters that hold an instance. The library compares posteriors of
# this model by these alone.

# %%
figure = Figure(figsize=(8.5, 3.2), layout="constrained")
panels = figure.subplots(1, 2)
of_border = posteriors["Gibbs"].draws_with_estimands["instance_probability"][0, :200, -6]
for panel, values, title in (
    (panels[0], sampled[0, :200], "mean of the witnesses' first cluster"),
    (panels[1], of_border, "P(the instance at 2.75 is a witness)"),
):
    panel.plot(values, ".", color=BLUE, ms=4)
    panel.axhline(np.mean(values), color=ORANGE, ls="--")
    panel.set(title=title, xlabel="draw of the first chain (dashed: average)")
panels[0].set_ylim(-6, 6)
panels[1].set_ylim(0, 1)
figure

# %% [markdown]
# ## How many clusters
#
# Six were allowed in each class, two are there. Weights are sorted in each draw, the largest first;
# so they need no names. The prior would have them fall by a third each.

# %%
sds, occupied = {}, {}
for name, posterior in posteriors.items():
    draws = posterior.draws_with_estimands
    largest = -np.sort(-model.weights(posterior.stored_draws()), axis=2).mean(axis=0)
    occupied[name] = draws["occupied_components"].mean(("chain", "draw")).to_numpy()
    sds[name] = draws["instance_probability"].std(("chain", "draw")).to_numpy()
    print(f"{name}: weights of witnesses' clusters {largest[1].round(2)}")
    print(f"   {occupied[name].round(1)} clusters hold an instance (ordinary, witnesses)")
    assert (largest[:, :2].sum(axis=1) > 0.8).all()
    assert (largest[:, 1] > 2 * largest[:, 2]).all()
narrower = np.mean(sds["coordinate ascent"]) / np.mean(sds["Gibbs"])
print(f"sds of instance probabilities: {narrower:.2f} of the sampled ones")
assert (occupied["coordinate ascent"] < occupied["Gibbs"]).all()
assert narrower < 0.9

# %% [markdown]
# Both engines see two large clusters. Gibbs sampling also visits descriptions in which one of them
# is made of two, or a single instance has a cluster of its own. Coordinate ascent has found one
# mode and stays there: fewer clusters, and probabilities that are overconfident.
#
# ## To decide, or not to decide
#
# Now the paper's way: labels set to their better value, with the repair. Decisions are a special
# case of distributions of the labels, so that the highest bound without decisions cannot be lower.

# %%
if not IS_TOY:
    hard = coordinate_ascent(model, bags, seed=0, label_update="hard")
    soft = posteriors["coordinate ascent"]
    print(f"bound: {soft.elbo[-1]:.1f} with probabilities, {hard.elbo[-1]:.1f} with decisions")
    assert soft.elbo[-1] > hard.elbo[-1]
    decided = hard.approximation.label[[-12, -6]]
    print(f"the instance at 2.75 is decided to be {decided} in its two bags (1: a witness)")

# %% [markdown]
# ## A misprint
#
# The precision $\Lambda$ of a cluster with $N$ instances has a Wishart posterior with $\nu$ degrees
# of freedom. The paper's appendix has $\nu = \nu_0 + N + 1$; the library has $\nu_0 + N$. With one
# feature the posterior can be summed up on a grid of $(\mu, \Lambda)$, and the mean of $\Lambda$,
# which is $\nu W$, tells:

# %%
values, nu0 = np.array([-0.4, 0.3, 1.1]), 2.0
mu, precision = np.meshgrid(np.linspace(-8, 8, 801), np.linspace(0.005, 20, 1000))
log_posterior = gamma(nu0 / 2, scale=2).logpdf(precision) + norm(0, precision**-0.5).logpdf(mu)
log_posterior += sum(norm(mu, precision**-0.5).logpdf(value) for value in values)
posterior = np.exp(log_posterior - log_posterior.max())
mean = np.sum(posterior * precision) / posterior.sum()
num = len(values)
W = 1 / (1 + np.sum((values - values.mean()) ** 2) + num / (1 + num) * values.mean() ** 2)
print(f"by the grid {mean:.3f}; ν0 + N: {(nu0 + num) * W:.3f}; printed {(nu0 + num + 1) * W:.3f}")
assert abs(mean / ((nu0 + num) * W) - 1) < 0.01
# And what the library has gained in degrees of freedom is the number of instances.
gained = variational.degrees_of_freedom - model.degrees_of_freedom
np.testing.assert_allclose(gained, variational.strength - model.mean_strength, atol=1e-8)

# %% [markdown]
# ## What the model takes for granted
#
# All labellings that a bag allows are equally likely beforehand. That sounds like no opinion and is
# a strong one: half of the instances of a positive bag are expected to be witnesses. In the scene
# above they are. If the fraction is $s$, less than ½, the class of witnesses also has to explain
# the rest. With enough data its density is $p_+ = 2s\,p_{\text{witness}} + (1 - 2s)\,p_-$, and an
# ordinary instance in a positive bag gets the probability $(1 - 2s)/(2 - 2s)$, not 0.

# %%
if not IS_TOY:
    rare = scene(480, 0.2, seed=1)
    found = coordinate_ascent(DPMIL.for_bags(rare, max_components=6), rare, seed=0)
    q = found.approximation
    largest = np.argsort(-q.expected_weight[1])[:4]
    centres = np.sort(q.mean[1, largest, 0])
    print(f"clusters of the class of witnesses: {centres.round(1)}")
    assert (np.abs(centres - [-4, -1.5, 1.5, 4]) < 0.5).all()

    truth = rare.instance_labels[rare.labels[rare.bag_index] == 1]
    draws = found.draws_with_estimands["instance_probability"]
    probability = draws.mean(("chain", "draw")).to_numpy()
    fraction, ordinary_gets = truth.mean(), probability[truth == 0].mean()
    formula = (1 - 2 * fraction) / (2 - 2 * fraction)
    error = 2 / (2 - 2 * fraction) ** 2 * np.sqrt(fraction * (1 - fraction) / len(truth))
    auc = roc_auc_score(truth, probability)
    print(f"fraction {fraction:.2f}: an ordinary instance gets {ordinary_gets:.3f} on average,")
    print(f"and {formula:.3f} ± {error:.3f} by the formula; area under the curve {auc:.3f}")
    assert abs(ordinary_gets - formula) < 3 * error
    assert auc > 0.98

# %% [markdown]
# Two of the four are the ordinary clusters, taken over. The order of the instances is right all the
# same, and the paper's first table measures the order. But as a probability the number is no
# frequency unless half of the instances are witnesses.
#
# ## From instances to the bag
#
# The paper predicts instances. To predict a bag one might take the noisy-or of its instances, one
# minus the probability that none is a witness. Take ten instances that are equally likely under
# both classes. They say nothing about the bag. The noisy-or is certain of it:

# %%
ten = Bags.from_list([np.zeros((10, 1))])
nothing_known = np.zeros((2, 10))
for pooling in ("bayes", "noisy_or"):
    of_bag = expit(model.log_odds(nothing_known, ten, pooling=pooling)[0][0])
    print(f"{pooling}: {of_bag:.4f}, and {model.positive_fraction:.4f} before the bag was seen")
    if pooling == "bayes":
        np.testing.assert_allclose(of_bag, model.positive_fraction)
    else:
        np.testing.assert_allclose(of_bag, 1 - 0.5**10)

# %% [markdown]
# The library's default is Bayes' rule, with the model's distribution of labellings.
#
# ## Kinds of handwriting
#
# Bags of digits again, positive if they have a 2 or a 9: two kinds of witnesses. DPMIL sees the
# images by their first principal components, and the labels of the bags. A cluster is a Gaussian,
# and its mean is an image. Which digits are in it, scikit-learn knows.

# %%
digits = load("digits")
components = PCA(8, random_state=0).fit(digits.instances)
seen = replace(digits, instances=components.transform(digits.instances))
images, names = load_digits(return_X_y=True)
name_of = {image.tobytes(): name for image, name in zip(images, names, strict=True)}
digit = np.array([name_of[image.tobytes()] for image in np.asarray(digits.instances)])


def describe(model, posterior):
    """What is in the largest clusters of witnesses, in one draw of labels and clusters."""
    weight = posterior.approximation.expected_weight[1]
    draws = posterior.stored_draws()
    one = {name: draws[name][:1] for name in model.latent_sites}
    drawn = model.complete(one, seen, seed=0)
    label, cluster = drawn["instance_label"][0], drawn["cluster"][0]
    for k in np.argsort(-weight)[:8]:
        count = np.bincount(digit[(label == 1) & (cluster == k)], minlength=10)
        common = ", ".join(f"{count[d]} times {d}" for d in np.argsort(-count)[:3] if count[d])
        print(f"cluster of weight {weight[k]:.2f}: {common}")
    is_largest = np.isin(cluster, np.argsort(-weight)[:3])
    return [
        np.isin(digit[chosen], (2, 9)).mean() for chosen in (label == 1, (label == 1) & is_largest)
    ]


def draw_means(approximation):
    """The means of the largest clusters of either class, as images."""
    figure = Figure(figsize=(8.5, 2.9), layout="constrained")
    for klass, row in enumerate(figure.subplots(2, 8)[::-1]):
        weight = approximation.expected_weight[klass]
        for panel, k in zip(row, np.argsort(-weight), strict=False):
            image = components.inverse_transform(approximation.mean[klass, k][None])
            panel.imshow(image.reshape(8, 8), cmap="gray_r", interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.set_title(f"{weight[k]:.2f}", fontsize=10)
        row[0].set_ylabel(("ordinary", "witnesses")[klass])
    figure.suptitle("means of the largest clusters, with their expected weights", fontsize=11)
    return figure


# %%
figure = Figure()
if not IS_TOY:
    digit_model = DPMIL.for_bags(seen)
    found = coordinate_ascent(
        digit_model, seen, seed=0, num_starts=3, tolerance=1e-6, num_draws=100
    )
    truth = seen.instance_labels[seen.labels[seen.bag_index] == 1]
    draws = found.draws_with_estimands["instance_probability"]
    auc = roc_auc_score(truth, draws.mean(("chain", "draw")).to_numpy())
    print(f"area under the curve for the images of positive bags: {auc:.3f}")
    of_all, of_largest = describe(digit_model, found)
    print(f"2s and 9s: {of_largest:.0%} in the three largest, {of_all:.0%} in all")
    assert auc > 0.95
    assert of_largest > 0.9 > of_all
    figure = draw_means(found.approximation)
figure

# %% [markdown]
# The largest clusters of witnesses are the 9s, and 2s of two hands (at full size). A kind, to this
# model, is what one Gaussian can describe. After these come zeros, fives and threes: only a
# quarter of the images in positive bags are 2s and 9s, and a class that is expected to have half of
# them takes in some of the rest. A look at the clusters shows that at once. A score does not.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** With $\alpha = 2$, how many clusters do two instances occupy on average? Derive it
# from the stick-breaking weights, then compare with the formula.

# %% tags=["hide-cell"]
# Two instances share a cluster with probability E Σ π_k², which is 1/(1 + α).
together = np.sum(weights**2, axis=1).mean()
print(f"in one cluster with probability {together:.4f}, expected {1 / (1 + ALPHA):.4f}")
np.testing.assert_allclose(together, 1 / (1 + ALPHA), atol=0.01)
np.testing.assert_allclose(2 - 1 / (1 + ALPHA), ALPHA / ALPHA + ALPHA / (ALPHA + 1))

# %% [markdown]
# **Exercise 2.** Three instances have $\rho = 0.1$ each. What is the probability that a positive
# bag of them holds exactly one witness? How does it change with thirty of them?

# %% tags=["hide-cell"]
exactly_one = [n * 0.1 * 0.9 ** (n - 1) / (1 - 0.9**n) for n in (3, 30)]
print(f"exactly one of 3: {exactly_one[0]:.2f}, of 30: {exactly_one[1]:.2f}")
# With three the label makes one the probable number; with thirty several were expected anyway.
assert exactly_one[0] > 0.8 > 0.2 > exactly_one[1]

# %% [markdown]
# **Exercise 3.** Can the label of a positive bag ever lower the probability of an instance?
# Can a further instance in the bag ever raise it?

# %% tags=["hide-cell"]
# Neither: ρ is divided by 1 − Π(1 − ρ) < 1, and each further instance brings that nearer to 1.
rho = np.random.default_rng(2).uniform(size=(1000, 5))
by_size = [rho[:, 0] / (1 - np.prod(1 - rho[:, :n], axis=1)) for n in range(1, 6)]
assert (np.diff(by_size, axis=0) <= 1e-12).all()
assert (by_size[-1] >= rho[:, 0]).all()

# %% [markdown]
# **Exercise 4.** The mean of "the first cluster" is meaningless over the draws of Gibbs sampling.
# Give a summary of the witnesses' places in `posteriors["Gibbs"]` that needs no names.

# %% tags=["hide-cell"]
# For one, the distance from 0 of the heaviest cluster of each draw, whatever its number is.
stored = posteriors["Gibbs"].stored_draws()
heaviest = model.weights(stored)[:, 1].argmax(axis=1)
distance = abs(stored["mean"][np.arange(len(heaviest)), 1, heaviest, 0])
print(f"the heaviest cluster lies {distance.mean():.2f} ± {distance.std():.2f} from 0")
assert distance.mean() - distance.std() > BORDER > abs(sampled.mean())
