# %% [markdown]
# # 1. Labels on bags
#
# A pathologist says of a slide that there is a tumour, not which of ten thousand cells are. A
# chemist knows that a molecule smells of musk, not which of its shapes does it. Somebody tags a
# photograph with "fox". The label belongs to a *bag*; what we want to know is inside it.
#
# This is *multiple-instance learning*. The notebook shows the problem on images that everyone can
# judge, why the obvious way is wrong, and what a model gives that the obvious way cannot: an
# opinion on every instance, with an interval.
#
#     python examples/01_bags.py [--toy]

# %%
# %matplotlib inline
import sys

import numpy as np
from matplotlib.figure import Figure
from milzoo.datasets import load, patch_on_grid
from milzoo.diagnostics import plot_bag, relevance
from milzoo.estimators import BayesianMIL, StickBreakingClassifier
from milzoo.inference import coordinate_ascent, keep_programs, nuts
from milzoo.models import VGPMIL, CoupledVGPMIL
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

keep_programs()

NUM_DRAWS = 200 if "--toy" in sys.argv else 1000

# %% [markdown]
# ## Ten images in a bag
#
# Handwritten digits in bags of ten. A bag is positive if a 2 or a 9 is among them. We are told the
# label of the bag. (That of each image is known here too, but only to see in the end who was
# right.)

# %%
bags = load("digits")
train, test = bags.split(0.7, seed=0)
print(f"{train.num_bags} bags to learn from, {test.num_bags} to be judged by")
of_images = (train.instance_labels == 1).mean()
print(f"{train.labels.mean():.0%} of bags are positive, but {of_images:.0%} of images are")

# %% [markdown]
# Half of the bags are positive, but one image in eight. A label says: *one of these ten, at least*;
# or else: *none of these*. Negative bags say more: ten labels each.

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
# It still ranks images better than chance: what only positive bags have pulls to one side, what
# both have pulls to neither. But its numbers are no probabilities of being a 2 or a 9. They say how
# likely it is that *the bag* was positive:

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
# Say it as a story. A function f over images, smooth, unknown: a Gaussian process. Each image is
# positive with probability σ(f), by itself. A bag is positive if one of its images is. All that we
# know of the images we know by that last sentence.
#
# `VGPMIL` is this story; `for_bags` chooses fifty points at which f is pinned down, `mean=-3` says
# that an image is ordinary until proven otherwise.

# %%
train, test = train.standardize(), test.standardize(train)
model = VGPMIL.for_bags(train, variance=5.0, length_scale=8.0, mean=-3.0)
model

# %% [markdown]
# Two ways to compute what follows from the labels: `coordinate_ascent`, closed-form updates of a
# Gaussian that lies below the truth, and `nuts`, draws of the truth itself.

# %%
posteriors = {
    "closed form": coordinate_ascent(model, train, seed=0),
    "NUTS": nuts(model, train, seed=0, num_warmup=NUM_DRAWS // 2, num_samples=NUM_DRAWS),
}
for name, posterior in posteriors.items():
    print(f"{name}: {posterior.seconds:.1f} s, {posterior.status.sentence}")

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
# No image had a label, and yet they are ranked better than by the obvious way; and an ordinary
# image is now called ordinary:

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
# And the positive bag that they believe least. What went wrong is there to be seen.

# %%
missed = int(np.argmin(np.where(test.labels == 1, predictions["NUTS"].bag_probability, np.inf)))
plot_bag(predictions, test, missed, image_shape=(8, 8), images=pixels)

# %% [markdown]
# ## When neighbours are alike
#
# The images of a bag have no order. Pieces of a slide have: a tumour covers pieces that lie side by
# side. `bags.with_edges(adjacency)` gives bags such a graph, and `CoupledVGPMIL` averages the
# latent value of an instance with those of its neighbours. Here bags are drawn: grids of 36 cells,
# and in a positive bag nine cells in a square, whose features are shifted by less than the noise.
# Shown is one that was not learned from: of positive bags the median by the coupled probability.

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
# ## The bars are not the same
#
# Both see the same images, and agree on most. But the bars of the closed form are shorter: it is
# surer than the labels allow.

# %%
width = {
    name: np.diff(prediction.instance_interval(0.9), axis=0).mean()
    for name, prediction in predictions.items()
}
print(", ".join(f"{name}: {one:.3f}" for name, one in width.items()))
assert width["closed form"] < 0.8 * width["NUTS"]

# %% [markdown]
# Whether that matters, and where it comes from, is what the next notebooks are about.
