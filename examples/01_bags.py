# %% [markdown]
# # 1. Labels on bags
#
# A pathologist says of a slide that there is a tumour, not which of ten thousand cells are. A
# chemist knows that a molecule smells of musk, not which of its shapes does it. Somebody tags a
# photograph with "fox". The label belongs to a *bag*; we want to know its instances.
#
# This is *multiple-instance learning*. The notebook shows the problem on images that everyone can
# judge, why the obvious way is wrong, and what a model adds: a probability of every instance, with
# an interval.
#
#     python examples/01_bags.py [--toy]

# %% [markdown]
# **You will learn**
#
# - why one cannot give each instance the label of its bag,
# - how a model finds the positive instances from labels of bags alone,
# - how two engines compute its posterior, and whose intervals are too narrow.

# %%
# %matplotlib inline
import sys

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from milzoo.datasets import Bags, load, patch_on_grid
from milzoo.diagnostics import plot_bag, plot_with_slider, relevance
from milzoo.estimators import BayesianMIL, StickBreakingClassifier
from milzoo.inference import coordinate_ascent, keep_programs, nuts
from milzoo.models import RBF, VGPMIL, CoupledVGPMIL
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

keep_programs()

IS_TOY = "--toy" in sys.argv
NUM_DRAWS = 200 if IS_TOY else 1000

# %% [markdown]
# ## Ten images in a bag
#
# Handwritten digits in bags of ten. A bag is positive if a 2 or a 9 is among them. The models learn
# from the labels of the bags. The labels of the images serve to measure how right they are.

# %%
bags = load("digits")
train, test = bags.split(0.7, seed=0)
print(f"{train.num_bags} bags to learn from, {test.num_bags} held out")
of_images = (train.instance_labels == 1).mean()
print(f"{train.labels.mean():.0%} of bags are positive, but {of_images:.0%} of images are")

# %% [markdown]
# Half of the bags are positive, but one image in eight. A positive label says: *at least one of
# these ten*. A negative label says: *none of these*, which is ten labels at once.

# %% [markdown]
# ## The obvious way, and what is wrong with it
#
# Give each image the label of its bag, and learn from the images. Most of the images in a positive
# bag are then labelled wrong.

# %%
features, test_features = (some.standardize(train).instances for some in (train, test))
label_of_bag = train.labels[train.bag_index]
is_wrong = label_of_bag != train.instance_labels
print(
    f"{is_wrong.mean():.0%} of all images get a wrong label; of those in positive bags "
    f"{is_wrong[label_of_bag == 1].mean():.0%}"
)
obvious = LogisticRegression(max_iter=5000, C=0.01).fit(features, label_of_bag)
score = obvious.predict_proba(test_features)[:, 1]

# %% [markdown]
# It still ranks images better than chance: features that only positive bags have raise its score.
# But its numbers are no probabilities of being a 2 or a 9. They say how likely it is that
# *the bag* was positive:

# %%
truth = test.instance_labels == 1
print(f"of ordinary images it says {score[~truth].mean():.2f} on average")
print(f"of a 2 or a 9 {score[truth].mean():.2f}")
obvious_auc = roc_auc_score(truth, score)
print(f"area under the curve for images: {obvious_auc:.3f}")
assert score[~truth].mean() > 0.3  # and should be near 0

# %% [markdown]
# ## A model of what is inside
#
# The model starts from a smooth unknown function f over images, a Gaussian process. Each image is
# positive with probability σ(f), independently given f. A bag is positive if one of its images is.
# The labels of the bags speak of the images through that rule alone.
#
# `VGPMIL` is this model. `for_bags` chooses fifty inducing points, at which f is computed, and
# `mean=-3` says that an image is probably ordinary.

# %%
train, test = train.standardize(), test.standardize(train)
model = VGPMIL.for_bags(train, variance=5.0, length_scale=8.0, mean=-3.0)
model

# %% [markdown]
# Two engines compute the posterior: `coordinate_ascent` fits a Gaussian by closed-form updates, and
# `nuts` draws from the exact posterior.

# %%
posteriors = {
    "closed form": coordinate_ascent(model, train, seed=0),
    "NUTS": nuts(model, train, seed=0, num_warmup=NUM_DRAWS // 2, num_samples=NUM_DRAWS),
}
for name, posterior in posteriors.items():
    print(f"{name}: {posterior.seconds:.1f} s, {posterior.status.sentence}")

# %% [markdown]
# ## Bag by bag
#
# How can labels of bags tell which instance is positive? Here instances are points on a line. Every
# positive bag has one instance near 1.5; no negative bag has. Drag the slider and add bags: dots on
# top are the instances of positive bags, dots at the bottom those of negative ones. With one
# positive bag the closed form favours the two instances that lie side by side. Each further bag
# rules places out, until one place remains.

# %%
random = np.random.default_rng(3)
places = random.uniform(-3, 3, size=(12, 4))
is_positive = np.arange(12) % 2 == 0
places[is_positive, 0] = 1.5 + 0.2 * random.standard_normal(6)
near_the_witness = ~is_positive[:, None] & (abs(places - 1.5) < 0.6)
places = np.where(near_the_witness, places - 2, places)
on_a_line = Bags.from_padded(places[:, :, None], is_positive.astype(int))
of_line = VGPMIL(RBF(8.0, 0.6), np.linspace(-3, 3, 15)[:, None], mean=-2.0)
x = np.linspace(-3, 3, 61)
frames, dots = [], []
for num_bags in (2, 12) if IS_TOY else (1, 2, 3, 4, 6, 8, 10, 12):
    seen = on_a_line[:num_bags]
    of_x = coordinate_ascent(of_line, seen, seed=0).predict(Bags.from_list([x[:, None]]))
    low, high = of_x.instance_interval(0.9)
    curve = {"instance": x, "P(positive)": of_x.instance_probability, "low": low, "high": high}
    frames.append(pd.DataFrame(curve).assign(bags=num_bags, what="posterior mean, 90 % band"))
    in_positive = seen.labels[seen.bag_index]
    dots.append(pd.DataFrame({"instance": seen.instances[:, 0], "bags": num_bags}))
    dots[-1]["P(positive)"] = np.where(in_positive, 1.05, -0.05)
    dots[-1]["what"] = np.where(in_positive, "in a positive bag", "in a negative bag")
assert abs(x[of_x.instance_probability.argmax()] - 1.5) < 0.3
plot_with_slider(
    pd.concat(frames),
    x="instance",
    y="P(positive)",
    slider="bags",
    colour="what",
    band=("low", "high"),
    points=pd.concat(dots),
)

# %% [markdown]
# ## What they say of bags, and of images
#
# A prediction has probabilities of the bags and of every image in them, as draws.

# %%
predictions = {name: posterior.predict(test) for name, posterior in posteriors.items()}
for name, prediction in predictions.items():
    of_bags = roc_auc_score(test.labels, prediction.bag_probability)
    of_images = roc_auc_score(truth, prediction.instance_probability)
    print(f"{name}: area under the curve {of_bags:.3f} for bags, {of_images:.3f} for images")
    assert of_bags > 0.8
    assert of_images > obvious_auc

# %% [markdown]
# No image had a label, and yet the ranking is better than the obvious way's. An ordinary image now
# gets a low probability:

# %%
for name, prediction in predictions.items():
    of_ordinary = prediction.instance_probability[~truth].mean()
    print(f"{name}: of ordinary images {of_ordinary:.2f} on average")
    assert of_ordinary < 0.2

# %% [markdown]
# ## Inside one bag
#
# A positive bag, as both see it. Its 2s and 9s have a red frame, which the models do not see.

# %% slideshow={"slide_type": "slide"}
surest = int(np.argmax(predictions["NUTS"].bag_probability * test.labels))
pixels = bags.split(0.7, seed=0)[1].instances  # before they were standardised
picture = plot_bag(predictions, test, surest, image_shape=(8, 8), images=pixels)
picture

# %% [markdown]
# Which images were enough for that? `relevance` looks for the largest part of the bag that may go
# while the bag stays positive, and says of each image how many nats its label would tell about the
# posterior: what to ask a person next.

# %%
decisive = relevance(posteriors["NUTS"], test, surest)
assert decisive.may_go.any() and decisive.probability_without >= 0.5
one = {"NUTS": predictions["NUTS"]}
plot_bag(one, test, surest, image_shape=(8, 8), images=pixels, relevance=decisive)

# %% [markdown]
# And the positive bag with the lowest probability. One can see what went wrong.

# %%
missed = int(np.argmin(np.where(test.labels == 1, predictions["NUTS"].bag_probability, np.inf)))
plot_bag(predictions, test, missed, image_shape=(8, 8), images=pixels)

# %% [markdown]
# ## When neighbours are alike
#
# The images of a bag have no order. Pieces of a slide have: a tumour covers pieces that lie side by
# side. `bags.with_edges(adjacency)` gives bags such a graph, and `CoupledVGPMIL` averages the
# latent value of an instance with those of its neighbours. Here bags are simulated: grids of 36
# cells, and in a positive bag nine cells in a square, whose features are shifted by less than the
# noise. The figure shows a held-out positive bag, the median one by the coupled probability.

# %%
drawn, judged = (patch_on_grid(60, shift=0.7, seed=seed) for seed in (0, 1))
alone = VGPMIL.for_bags(drawn, num_inducing=30)
coupled = CoupledVGPMIL(alone.kernel, alone.inducing_points, mean=alone.mean, coupling=0.6)
of_cells = {"the truth": judged.instance_labels}
losses = {}
for name, one in (("alone", alone), ("averaged with neighbours", coupled)):
    predicted = coordinate_ascent(one, drawn, seed=0).predict(judged)
    of_cells[name] = predicted.instance_probability
    losses[name] = [
        -np.log(np.where(labels == 1, probability, 1 - probability)).mean()
        for probability, labels in (
            (predicted.bag_probability, judged.labels),
            (predicted.instance_probability, judged.instance_labels),
        )
    ]
    print(f"{name}: log loss of bags {losses[name][0]:.2f}, of cells {losses[name][1]:.2f}")
assert np.less(losses["averaged with neighbours"], losses["alone"]).all()
positive = np.flatnonzero(judged.labels)
by_probability = positive[np.argsort(predicted.bag_probability[positive])]
shown = judged.bag_index == by_probability[len(positive) // 2]
figure = Figure(figsize=(7, 2.6), layout="constrained")
for panel, (name, cells) in zip(figure.subplots(1, 3), of_cells.items(), strict=True):
    panel.imshow(cells[shown].reshape(6, 6), vmin=0, vmax=1, cmap="Greys")
    panel.set(title=name, xticks=[], yticks=[])
figure

# %% [markdown]
# ## More than two classes
#
# Tell nines from twos: the class of a bag is *nine* if it has one, else *two* if it has one, else
# *neither*. `StickBreakingClassifier` asks one model for nines, and another for twos in the bags
# that are left. Images get probabilities of the three classes, though no label of one is seen.

# %%
pictures, digits = load_digits(return_X_y=True)
digit_of = {picture.tobytes(): digit for picture, digit in zip(pictures, digits, strict=True)}


def kinds_of(some):
    """2 for a nine, 1 for a two, 0 for another digit: of images, and of bags."""
    of_images = np.array([digit_of[row.tobytes()] for row in some.instances])
    kinds = np.select([of_images == 9, of_images == 2], [2, 1], 0)
    return kinds, np.maximum.reduceat(kinds, some.starts)


raw_train, raw_test = bags.split(0.7, seed=0)  # as above: `train` and `test` are standardised
two_classes = BayesianMIL("probit_gpmil", "coordinate_ascent", seed=0)
three_classes = StickBreakingClassifier(two_classes).fit(train, kinds_of(raw_train)[1])
probability = three_classes.predict_instances_proba(test)
kinds, classes = kinds_of(raw_test)
for number, name in enumerate(("neither", "two", "nine")):
    said = probability[kinds == number].mean(axis=0).round(2)
    print(f"of {name}: neither {said[0]:.2f}, two {said[1]:.2f}, nine {said[2]:.2f} on average")
accuracy = (probability.argmax(axis=1) == kinds).mean()
print(f"right of images {accuracy:.0%}, of bags {three_classes.score(test, classes):.0%}")
assert accuracy > (kinds == 0).mean()

# %% [markdown]
# ## The intervals differ
#
# Both engines see the same images, and agree on most. But the intervals of the closed form are
# narrower: it is overconfident.

# %%
width = {
    name: np.diff(prediction.instance_interval(0.9), axis=0).mean()
    for name, prediction in predictions.items()
}
print(", ".join(f"{name}: {one:.3f}" for name, one in width.items()))
assert width["closed form"] < 0.8 * width["NUTS"]

# %% [markdown]
# The next notebooks ask where that comes from, and when it matters.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** An image is positive with probability $p$, independently of the others. Half of
# the bags of ten are positive. How large is $p$? Are its log odds near the prior mean −3 above?

# %% tags=["hide-cell"]
p = 1 - 0.5 ** (1 / 10)
log_odds = np.log(p / (1 - p))
print(f"p = {p:.3f}, log odds {log_odds:.2f}")
np.testing.assert_allclose(1 - (1 - p) ** 10, 0.5)
assert abs(log_odds - model.mean) < 0.5

# %% [markdown]
# **Exercise 2.** Given $p$ and a positive bag of ten, what is the probability that a certain image
# in it is positive? Compare with the fraction of positive images in the positive bags of `train`.

# %% tags=["hide-cell"]
given_the_label = p / 0.5  # P(image positive and bag positive) = p, and P(bag positive) = ½
in_positive_bags = train.labels[train.bag_index] == 1
fraction = train.instance_labels[in_positive_bags].mean()
print(f"by Bayes' rule {given_the_label:.2f}, in the data {fraction:.2f}")
# In these data images are not independent: a positive bag often has several positive ones.
assert given_the_label < 0.7 * fraction

# %% [markdown]
# **Exercise 3.** The obvious way scores an image; take the largest score in a bag as the score of
# the bag. Does it rank the held-out bags better or worse than the closed form does?

# %% tags=["hide-cell"]
largest = np.maximum.reduceat(score, test.starts)
by_largest = roc_auc_score(test.labels, largest)
by_model = roc_auc_score(test.labels, predictions["closed form"].bag_probability)
print(f"area under the curve of bags: obvious way {by_largest:.3f}, closed form {by_model:.3f}")
assert by_largest < by_model

# %% [markdown]
# **Exercise 4.** A bag is positive unless all of its images are negative. Multiply the means of
# 1 − P(positive) over the images of a bag. Why is one minus this product not the probability of the
# bag that `predict` gives?

# %% tags=["hide-cell"]
negative = 1 - predictions["NUTS"].instance_probability
by_means = 1 - np.multiply.reduceat(negative, test.starts)
difference = by_means - predictions["NUTS"].bag_probability
print(f"differences from {difference.min():+.3f} to {difference.max():+.3f}")
# Images of a bag share the unknown f: over draws their probabilities are correlated, and the mean
# of a product is not the product of means.
assert abs(difference).max() > 0.01
