# %% [markdown]
# # 8. How positive is a neighbourhood?
#
# Most methods for bags begin with a model. Venkatesan, Chandakkar and Li (2015) begin with data.
# Stand at a point of feature space, and look around: how far are the nearest instances of positive
# bags, how far those of negative ones? Witnesses are where the first are close and the second are
# not. A *neighbourhood score* is the difference of these distances. Nothing is fitted. (The paper
# calls it a measure.) The older *diverse density* stands beside it: it has a likelihood.
#
#     python examples/08_neighbours.py [--toy]

# %% [markdown]
# **You will learn**
#
# - how to score a point of feature space by its neighbours, and where the peaks of the score are,
# - why a bag must not be among its own neighbours,
# - how a likelihood and its evidence differ from a score.

# %%
# %matplotlib inline
import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from arviz import mcse
from matplotlib.figure import Figure
from milzoo.datasets import Bags, load
from milzoo.diagnostics import Surface, plot_surfaces, plot_with_slider
from milzoo.estimators import (
    DiverseDensityLearner,
    PrototypeLearner,
    ScoreLearner,
    choose_by_elbow,
)
from milzoo.estimators.prototypes import Peaks
from milzoo.inference import grid, keep_programs, nuts
from milzoo.models import (
    DiverseDensity,
    NeighbourScore,
    ParzenScore,
    ScoreThreshold,
    scored,
)
from scipy.spatial.distance import cdist
from scipy.special import expit
from sklearn.metrics import roc_auc_score

keep_programs()

IS_TOY = "--toy" in sys.argv
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"

# %% [markdown]
# ## The score, by hand
#
# $$f(x) = \sum_{z \in k^-(x)} \Psi(\|x - z\|) - \sum_{z \in k^+(x)} \Psi(\|x - z\|)$$
#
# $k^+(x)$ and $k^-(x)$ are the $k$ instances of positive and of negative bags that are nearest to
# $x$, and $\Psi$ is some increasing function. No instance has a label here: a neighbour takes the
# label of its bag, right or wrong. *Parzen's* version counts instead: positive instances in a cube
# around $x$, less negative ones. We compute both on a scene in two dimensions:

# %%
scene = load("venkatesan2015")
of_bag = scene.labels[scene.bag_index]
here = np.array([[4.0, 4.0]])
distance = [np.sort(cdist(here, scene.instances[of_bag == label])[0]) for label in (0, 1)]
by_hand = np.sum(distance[0][:6]) - np.sum(distance[1][:6])
neighbourhood_score = NeighbourScore(k=6)
by_library = neighbourhood_score.scores(here, scene)
print(f"at {here[0]}: {by_hand:.3f} by hand, {by_library[0]:.3f} by the library")
np.testing.assert_allclose(by_library, by_hand)

inside = np.all(np.abs(scene.instances - here) <= 0.8, axis=1)
count = np.sum(inside & (of_bag == 1)) - np.sum(inside & (of_bag == 0))
np.testing.assert_allclose(ParzenScore(width=0.8).scores(here, scene), count / scene.num_instances)

# %% [markdown]
# (The first sum of the paper's Parzen score runs to $|k^-|$, and $|k^+|$ must be meant: else
# positive instances beyond the number of negative ones would not count.)
#
# ## Never ask yourself
#
# From which value on does $f$ mean a witness? The training bags tell, and here is a trap. An
# instance of a positive bag is its own nearest neighbour, at distance 0. So the score of a bag
# contains the bag's own label. How bad is that? We take bags of digits, and shuffle their labels.
# There is nothing left to learn. A method with errors in far fewer than half of the bags misleads.


# %%
def fewest_errors(scores, bags):
    """Fraction of bags on the wrong side of the best threshold on their highest instance."""
    highest = np.maximum.reduceat(scores, bags.starts)
    thresholds = [*highest, np.inf]
    return min(np.mean((highest >= one) != (bags.labels == 1)) for one in thresholds)


train, test = load("digits").split(0.6, seed=0)
train, test = train.standardize(), test.standardize(train)
shuffled = replace(
    train, labels=np.random.default_rng(0).permutation(train.labels), instance_labels=None
)
near, errors = NeighbourScore(k=3), {}
for name, bags in (("true labels", train), ("shuffled", shuffled)):
    asked_itself = fewest_errors(near.scores(bags.instances, bags), bags)
    errors[name] = asked_itself, fewest_errors(near.own_scores(bags), bags)
    print(
        f"{name}: {errors[name][0]:.0%} errors if a bag asks itself, {errors[name][1]:.0%} if not"
    )
assert errors["shuffled"][0] < 0.05
# 98 coins have an sd of 5 %, and a threshold may be chosen.
assert errors["shuffled"][1] > 0.5 - 3 * 0.5 / np.sqrt(shuffled.num_bags)

# %% [markdown]
# With a bag among its own neighbours, the score separates labels that mean nothing. So training
# must exclude each bag's own instances. `own_scores` and `ScoreLearner` do that.
#
# ## A hard threshold
#
# The paper's classifier calls a bag positive if one of its instances has $f(x) \ge T$. $T$ has the
# fewest training errors. $k$ is where the errors stop falling, at the *elbow* of their curve. The
# training bags choose both, and the test bags judge:

# %%
neighbourhood_scores = [NeighbourScore(k) for k in range(1, 13, 3 if IS_TOY else 1)]
elbow = choose_by_elbow(neighbourhood_scores, train)
classifier = ScoreLearner(elbow.neighbourhood_score).fit(train)
wrong = np.mean(classifier.predict(test) != test.labels)
print("training errors by k:", ", ".join(f"{error:.0%}" for error in elbow.errors))
print(f"k = {elbow.neighbourhood_score.k}; errors on {test.num_bags} test bags: {wrong:.0%}")
of_images = elbow.neighbourhood_score.scores(test.instances, train)
image_auc = roc_auc_score(test.instance_labels, of_images)
print(f"area under the curve for images: {image_auc:.2f}")
assert image_auc > 0.9
# Coins would err in half of them.
assert wrong < 0.5 - 4 * 0.5 / np.sqrt(test.num_bags)

# %% [markdown]
# ## A soft threshold, and its posterior
#
# A threshold is a number, and 98 bags do not determine it. A posterior needs a likelihood: an image
# is positive with probability $\sigma((f(x) - T)/s)$, and a bag if one of its images is. As
# $s \to 0$ this is the hard threshold. $T$ and $s$ get priors, and so does $k$: at full size one of
# three values. With $k$ summed out there are two unknown numbers. A grid over both gives their
# exact posterior. The No-U-Turn sampler checks it: the two share no code except the model's.

# %%
several = [NeighbourScore(k) for k in ((10,) if IS_TOY else (1, 3, 10))]
raw = scored(several, train)
on_train, on_test = raw.standardize(), scored(several, train, test).standardize(raw)
model = ScoreThreshold()
exact = grid(model, on_train, seed=0, num_points=41 if IS_TOY else 101, num_draws=2000)
drawn = exact.stored_draws()
threshold_sd = drawn["threshold"].std()
print(f"T = {drawn['threshold'].mean():.2f} ± {threshold_sd:.2f} sds of the score")
print(f"s = {drawn['softness'].mean():.2f} ± {drawn['softness'].std():.2f}")
of_scores = exact.draws_with_estimands["score_probability"].mean(("chain", "draw"))
print("P(k):", of_scores.to_numpy().round(3))
prediction = exact.predict(on_test)
print(f"area under the curve, bags: {roc_auc_score(test.labels, prediction.bag_probability):.2f}")
if not IS_TOY:
    sampled = nuts(model, on_train, seed=0, num_warmup=300, num_samples=500)
    print(sampled.status.sentence)
    for name in model.latent_sites:
        draws = sampled.tree["posterior"][name]
        error = np.hypot(float(mcse(draws)), drawn[name].std() / np.sqrt(len(drawn[name])))
        gap = float(draws.mean()) - drawn[name].mean()
        print(f"{name}: means {gap:+.4f} apart, Monte-Carlo error {error:.4f}")
        assert abs(gap) < 5 * error

# %%
of_bag = train.labels[train.bag_index]
f = on_train.instances[:, -1]
figure = Figure(figsize=(7.5, 3.8), layout="constrained")
panel = figure.subplots()
histogram = panel.twinx()
for label, colour in ((0, BLUE), (1, ORANGE)):
    histogram.hist(f[of_bag == label], bins=40, range=(-3, 4), color=colour, alpha=0.35)
histogram.set(ylabel="images in positive (orange) and negative bags", ylim=(0, 160))
places = np.linspace(-3, 4, 141)
curves = 1 / (1 + np.exp((drawn["threshold"] - places[:, None]) / drawn["softness"]))
panel.fill_between(places, *np.quantile(curves, [0.05, 0.95], axis=1), color="black", alpha=0.3)
panel.plot(places, curves.mean(axis=1), color="black")
panel.set(xlabel="f(x), k = 10, in sds", ylabel="P(positive), 90 % band", ylim=(0, 1), xlim=(-3, 4))
figure

# %% [markdown]
# ## What this posterior does not know
#
# The posterior takes $f$ as given. But $f$ depends on the labels of the other bags, and those are
# data too. Each label is used twice: once in $f$, and once as an outcome that $f$ explains. This
# product of probabilities is a *pseudo-likelihood*. How much would $f$ change with other bags? We
# compute it from one half of the training bags, and from the other. If errors fall like one over
# the root of the number of bags, half the difference is about the error of the whole.


# %%
def disagreement(seed):
    """Root mean square of half the difference at the test images, in sds of the score."""
    halves = train.split(0.5, seed=seed)
    one, other = (several[-1].scores(test.instances, half) for half in halves)
    return np.sqrt(np.mean((one - other) ** 2)) / 2 / raw.instances[:, -1].std()


of_score = np.array([disagreement(seed) for seed in range(5)])
print(f"error of f: {of_score.mean():.2f} sds; posterior sd of T: {threshold_sd:.2f} sds")
assert of_score.min() > 2 * threshold_sd

# %% [markdown]
# The interval of $T$ is exact *given the score*, and the error of the score is far larger. Use the
# posterior to see how soft a threshold has to be, and which $k$. Do not take it for the whole
# uncertainty.
#
# ## Prototypes: the peaks of the score
#
# Where is the score highest? Its peaks are *prototypes* of witnesses. The paper maximises the score
# from every instance of every positive bag, and its experiments use $\Psi(d) = d$. Follow that
# score along a ray, from the middle of a cluster of witnesses at (4, 4) to where there is nothing:

# %%
away = np.array([0.0, 4.0, 20.0, 100.0, 1000.0])
ray = 4.0 + away[:, None] * np.sqrt([0.5, 0.5])
plain, concave = NeighbourScore(6), NeighbourScore(6, transform=jnp.log1p)
along = {"d": plain.scores(ray, scene), "log(1 + d)": concave.scores(ray, scene)}
print("distance:", away)
for name, scores in along.items():
    print(f"Ψ = {name}: f = {scores.round(2)}")
assert along["d"][-1] > along["d"][0]
assert along["log(1 + d)"][-1] < 0.01 * along["log(1 + d)"][0]

# %% [markdown]
# Under $\Psi(d) = d$, a place a thousand units away from all data has a higher score than the
# middle of the cluster. Far out, the difference of two distances no longer depends on how far. So
# searches for a maximum leave the data. The paper asks for a $\Psi$ that increases and is
# "sub-modular". $\log(1 + d)$ increases and is concave: it gives distant differences less weight,
# and brings the peaks back. The number of neighbours $k$ does not. Move it, along the diagonal
# through the clusters of witnesses at $(-4, -4)$ and $(4, 4)$:

# %%
diagonal = np.linspace(-20.0, 20.0, 121)
points = np.column_stack([diagonal, diagonal])


def along_the_diagonal(k):
    """Both scores for each neighbour, at the points of the diagonal."""
    scores = {
        "Ψ(d) = d": NeighbourScore(k).scores(points, scene),
        "Ψ(d) = log(1 + d)": NeighbourScore(k, transform=jnp.log1p).scores(points, scene),
    }
    return [
        pd.DataFrame({"both features": diagonal, "f / k": f / k, "score": name, "k": k})
        for name, f in scores.items()
    ]


frames = pd.concat([frame for k in (1, 2, 3, 6, 12, 24) for frame in along_the_diagonal(k)])
plot_with_slider(frames, x="both features", y="f / k", slider="k", colour="score", start=6)

# %% [markdown]
# With few neighbours both scores are rough, and with many they are smooth. Away from the
# data only $\log(1 + d)$ falls towards 0, with any $k$.

# %%
of_each = frames.groupby(["score", "k"])["f / k"]
remaining = (of_each.last() / of_each.max()).unstack("score")  # at the right end
print(remaining.round(2))
assert (remaining["Ψ(d) = log(1 + d)"] < 0.2).all()
assert (remaining["Ψ(d) = d"] > 0.7).all()

# %%
CENTRES = np.array([[-4.0, 4.0], [4.0, 4.0], [-4.0, -4.0], [2.2, -0.6]])
learners = {
    "Ψ(d) = d": PrototypeLearner(plain, separation=1.0, max_prototypes=6),
    "Ψ(d) = log(1 + d)": PrototypeLearner(concave, separation=1.0, max_prototypes=6),
}
peaks = {name: learner.find_peaks(scene) for name, learner in learners.items()}
low, high = scene.instances.min(axis=0), scene.instances.max(axis=0)
astray, beyond = {}, {}
for name, found in peaks.items():
    to_data = cdist(found.points[:4], scene.instances).min(axis=1)
    to_centres = cdist(CENTRES, found.points[:6]).min(axis=1)
    astray[name] = to_data.max()
    beyond[name] = np.sum(np.any((found.points[:6] < low) | (found.points[:6] > high), axis=1))
    print(f"{name}: the four highest peaks are {to_data.round(1)} from the nearest instance")
    print(f"   and the four clusters of witnesses {to_centres.round(1)} from one of the first six")
assert beyond["Ψ(d) = d"] > beyond["Ψ(d) = log(1 + d)"] == 0
assert astray["Ψ(d) = d"] > 1 > 0.2 > astray["Ψ(d) = log(1 + d)"]
# Two and a half sds of the widest of the clusters.
assert (to_centres < 2.5 * 0.45).all()

# %% slideshow={"slide_type": "slide"}
nowhere = Peaks(np.empty((0, 2)), np.empty(0), np.empty((0, 2)))
parzen = ParzenScore(width=0.8)
surfaces = {
    name: Surface(
        lambda points, m=learner.neighbourhood_score: m.scores(points, scene), peaks[name], "f(x)"
    )
    for name, learner in learners.items()
}
surfaces["Parzen"] = Surface(lambda points: parzen.scores(points, scene), nowhere, "f(x)")
plot_surfaces(surfaces, scene, num_peaks=6)

# %% [markdown] slideshow={"slide_type": "-"}
# On the left some of the six peaks are missing: they are beyond the edge of the picture.

# %% [markdown]
# A radius for each prototype, chosen by the fewest training errors, makes a classifier. It no
# longer needs the training bags. On a new draw of the same scene:

# %%
prototypes = learners["Ψ(d) = log(1 + d)"].fit(scene)
fresh = load("venkatesan2015", seed=1)
wrong_bags = np.mean(prototypes.predict(fresh) != fresh.labels)
called = prototypes.predict_instances(fresh)
wrong_instances = np.mean(called != fresh.instance_labels)
print(f"errors: {wrong_bags:.0%} of {fresh.num_bags} bags, {wrong_instances:.1%} of instances")
print(f"to call all instances ordinary: {fresh.instance_labels.mean():.1%}")
assert wrong_instances < fresh.instance_labels.mean() / 2

# %% [markdown]
# ## Diverse density: one concept, and a likelihood
#
# Maron and Lozano-Pérez (1998) had asked another question. Is there *one* point, the concept $t$,
# that each positive bag has an instance close to, and no negative bag has? An instance is positive
# with probability $e^{-s^2 (x - t)^2}$, and a bag if one of its instances is: a *noisy-or*. That is
# a likelihood of $t$ and the scale $s$. With priors it has a posterior.
#
# On a line, with a concept at 5 and all other instances around 0, there are two unknown numbers.
# The crudest of all methods suffices: draw them from the prior, and weight the draws by the
# likelihood. Their mean likelihood is the evidence. At full size the No-U-Turn sampler runs too.


# %%
def line(concepts):
    """Forty bags of five; in positive ones the first instance is from one of the concepts."""
    random = np.random.default_rng(0)
    places = random.standard_normal((40, 5))
    positive = np.arange(1, 40, 2)
    places[positive, 0] = np.resize(concepts, 20) + 0.3 * random.standard_normal(20)
    return Bags.from_padded(places[:, :, None], np.arange(40) % 2)


def learner_with(label_noise):
    return DiverseDensityLearner(1.0, scale=1.0, learns_scales=False, label_noise=label_noise)


def importance_weights(model, draws, bags):
    """Weights of draws of the prior, and log evidence with its Monte-Carlo error."""
    probability = model.predict(draws, bags)["bag_probability"]
    of_label = np.where(bags.labels == 1, probability, 1 - probability)
    # Smaller probabilities may round to 0, which has no logarithm; they have no weight either.
    log_likelihood = np.sum(np.log(np.maximum(of_label, 1e-300)), axis=1)
    weight = np.exp(log_likelihood - log_likelihood.max())
    error = weight.std() / weight.mean() / np.sqrt(len(weight))
    return weight / weight.sum(), log_likelihood.max() + np.log(weight.mean()), error


one_concept = line([5.0])
diverse = DiverseDensity(dist.Normal(0.0, 4.0), dist.LogNormal(0.0, 1.0))
random = np.random.default_rng(0)
prior = {
    "concept": 4 * random.standard_normal((40000, 1)),
    "scale": np.exp(random.standard_normal((40000, 1))),
}
weight, log_evidence, error = importance_weights(diverse, prior, one_concept)
t = weight @ prior["concept"][:, 0]
t_sd = np.sqrt(weight @ (prior["concept"][:, 0] - t) ** 2)
print(f"weighted draws: t = {t:.2f} ± {t_sd:.2f}; ESS {1 / np.sum(weight**2):.0f}")
assert abs(t - 5) < 4 * t_sd
if not IS_TOY:
    by_nuts = nuts(diverse, one_concept, seed=0, num_warmup=300, num_samples=200)
    concept = by_nuts.stored_draws()["concept"][:, 0]
    print(f"NUTS: t = {concept.mean():.2f} ± {concept.std():.2f}; {by_nuts.status.sentence}")
    assert by_nuts.status.kind != "converged"
    assert abs(concept.mean() - t) > 10 * t_sd

# %%
places = np.linspace(-6, 8, 1401)
figure = Figure(figsize=(7.5, 3.4), layout="constrained")
panel = figure.subplots()
log_likelihood = learner_with(0.0).log_likelihood(places[:, None], one_concept)
panel.plot(places, log_likelihood, color="black", lw=1)
of_bag = one_concept.labels[one_concept.bag_index]
for label, colour in ((0, BLUE), (1, ORANGE)):
    ticks = one_concept.instances[of_bag == label, 0]
    panel.plot(ticks, np.full(len(ticks), 12.0 + 14 * label), "|", color=colour, ms=10)
panel.set(xlabel="t (ticks: instances, orange in positive bags)", ylabel="log likelihood, s = 1")
panel.set_ylim(-260, 45)
figure

# %% [markdown]
# The crude method is right, and the sampler fails. Every instance of a negative bag is a wall,
# narrow but without end: at $t = x$ it would be positive for sure, and its bag is not. Chains that
# begin among the walls stay there. $\hat{R}$ shows it, because they stay at different places. So
# the search for the mode starts at every instance of the positive bags: some are close to it.

# %%
highest = learner_with(0.0).find_peaks(one_concept)
print("peaks:", highest.points[:, 0].round(2), "log likelihoods:", highest.objective.round(1))
assert abs(highest.points[0, 0] - t) < 4 * t_sd

# %% [markdown]
# ## Two concepts
#
# Now half of the positive bags have an instance near −5, half near 5. The likelihood asks for one
# point that *all* have. A bag without it loses about $s^2 d^2$ nats, with $d$ its distance. So the
# bags farthest away have the largest gradients, and the peaks are far from both clusters. (The
# paper blames negative instances that come too near. Here there are none near ±5.) A fraction
# $\varepsilon$ of wrong labels limits the loss of a bag. A likelihood has an evidence, and a score
# has none: one concept explains these labels hardly better than coins do.

# %%
two_concepts, both = line([-5.0, 5.0]), np.array([[-5.0], [5.0]])
for label_noise in (0.0, 0.01):
    found = learner_with(label_noise).find_peaks(two_concepts).points[:4]
    print(f"ε = {label_noise}: the four highest peaks are at {found[:, 0].round(2)}")
    gap = cdist(both, found).min(axis=1)
    assert (gap > 1).all() if label_noise == 0 else (gap < 0.5).all()
of_both, of_middle = concave.scores(both, two_concepts), concave.scores(0 * both, two_concepts)
print(f"the score at −5 and 5: {of_both.round(1)}, at 0: {of_middle.round(1)}")
assert of_both.min() > 10 * abs(of_middle[0])

_, log_evidence_of_two, error_of_two = importance_weights(diverse, prior, two_concepts)
coins = 40 * np.log(0.5)
gain, gain_of_two = log_evidence - coins, log_evidence_of_two - coins
print("log evidence above that of coins")
print(f"{gain:.2f} ± {error:.2f} for one concept, {gain_of_two:.2f} ± {error_of_two:.2f} for two")
# 3 nats, a factor of 20, are customarily called strong evidence.
assert gain > 20 > 3 > gain_of_two + 4 * error_of_two

# %% [markdown]
# The neighbourhood score finds both clusters, and asks for no common concept. But it has no
# likelihood: nothing in it tells whether it explains the labels. Held-out bags tell.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Take $k = 1$, shuffled labels, and let each bag ask itself. Which sign has $f$ at
# an instance of a positive bag, and at one of a negative bag? How many training errors follow?

# %% tags=["hide-cell"]
nearest = NeighbourScore(k=1).scores(shuffled.instances, shuffled)
is_of_positive_bag = shuffled.labels[shuffled.bag_index] == 1
# One of the two distances is 0, that of the instance to itself.
assert (nearest[is_of_positive_bag] >= 0).all() and (nearest[~is_of_positive_bag] <= 0).all()
assert fewest_errors(nearest, shuffled) == 0

# %% [markdown]
# **Exercise 2.** Let $\Psi(d) = d$, and move away from the data in direction $u$. Show that $f$
# tends to the sum of the $k$ largest $u^\top z$ over instances of positive bags, less that over
# instances of negative bags. Compute the limit for the ray above.

# %% tags=["hide-cell"]
direction = np.sqrt([0.5, 0.5])
of_scene = scene.labels[scene.bag_index]
# Far out, the distance to z is about the distance to the origin less uᵀz.
farthest = [np.sort(scene.instances[of_scene == label] @ direction)[-6:] for label in (0, 1)]
limit = farthest[1].sum() - farthest[0].sum()
far_out = plain.scores(1e5 * direction[None], scene)[0]
print(f"limit {limit:.3f}, f far out {far_out:.3f}")
np.testing.assert_allclose(far_out, limit, atol=0.01)

# %% [markdown]
# **Exercise 3.** The posterior of $T$ ignores the error of $f$. Assume that both errors are
# independent and add up. How many times too narrow is the interval of $T$? Would more bags help?

# %% tags=["hide-cell"]
too_narrow = np.hypot(of_score.mean(), threshold_sd) / threshold_sd
print(f"the interval of T is {too_narrow:.1f} times too narrow")
# Both errors fall with more bags, and their ratio stays.
assert 2 < too_narrow < 10

# %% [markdown]
# **Exercise 4.** Let one concept and coins be equally probable a priori. How probable is one
# concept given the labels of each data set?

# %% tags=["hide-cell"]
print(f"one concept in the data: {expit(gain):.6f}, two concepts: {expit(gain_of_two):.2f}")
assert expit(gain) > 0.999999 > 0.95 > expit(gain_of_two)
