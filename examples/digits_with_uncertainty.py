# %% [markdown]
# # Two bags of digits: probabilities with standard deviations
#
# Castro-Macías et al. (2024), Figure 2: G-VGPMIL on bags of ten MNIST digits, positive with a 2 or
# a 9 among them. It saw labels of bags alone. Beneath each digit of a test bag stands the
# probability that it is positive, with the standard deviation of σ(f*) (equation 33), and above the
# bag its own (equation 37); both have the residual variance k̃ in them.
#
#     MILZOO_DATA=… python examples/digits_with_uncertainty.py [--toy] [--out PICTURE]

# %%
import sys

import numpy as np
from matplotlib import pyplot as plt
from milzoo.datasets import load
from milzoo.estimators import PCAOfInstances
from milzoo.papers.castro_macias_2024 import StoppedVGPMIL
from sklearn.model_selection import StratifiedKFold

IS_TOY = "--toy" in sys.argv
DATA, NUM_COMPONENTS, NUM_INDUCING = ("digits", 10, 20) if IS_TOY else ("mnist", 30, 200)
LENGTH_SCALE = 30.0 if IS_TOY else NUM_COMPONENTS**0.5

# %%
bags = load(DATA)
train, test = next(StratifiedKFold(5, shuffle=True, random_state=0).split(bags, bags.labels))
components = PCAOfInstances(NUM_COMPONENTS).fit(bags[train])
classifier = StoppedVGPMIL(NUM_INDUCING, LENGTH_SCALE, alpha=1.0, beta=2.5, seed=0)
classifier.fit(components.transform(bags[train]))

# %%
# The first positive and the first negative bag of the test bags.
positive, negative = (test[np.argmax(bags.labels[test] == label)] for label in (1, 0))
shown = bags[[positive, negative]]
posterior, features = classifier.posterior_, components.transform(shown).without_labels()
predicted = posterior.predict(features)
sd_of_bags, sd_of_instances = posterior.model.standard_deviations(
    posterior.stored_draws(), features
)
for bag in range(2):
    rows = shown.bag_index == bag
    for truth, probability, sd in zip(
        shown.instance_labels[rows],
        predicted.instance_probability[rows],
        sd_of_instances[rows],
        strict=True,
    ):
        print(f"bag {bag}: truth {truth}, P = {probability:.3f} ± {sd:.3f}")
    print(f"bag {bag}: P(T = 1) = {predicted.bag_probability[bag]:.3f} ± {sd_of_bags[bag]:.3f}")

# %% [markdown]
# What is printed, checked: a sd is at most that of a coin with the same probability, and the digits
# that are most surely positive are so.

# %%
coin = np.sqrt(predicted.instance_probability * (1 - predicted.instance_probability))
assert (sd_of_instances <= coin + 1e-9).all()
if not IS_TOY:
    in_first = shown.bag_index == 0
    assert shown.instance_labels[np.argmax(np.where(in_first, predicted.instance_probability, 0))]

# %%
side = round(bags.num_features**0.5)
figure = plt.figure(figsize=(1.05 * int(shown.bag_sizes.max()), 4.4), layout="constrained")
figure.suptitle("Digits that are truly positive are framed", fontsize=10)
for bag, part in enumerate(figure.subfigures(2)):
    part.suptitle(
        f"{'positive' if shown.labels[bag] else 'negative'} bag, "
        f"P(T = 1) = {predicted.bag_probability[bag]:.2f} ± {sd_of_bags[bag]:.2f}",
        fontsize=11,
    )
    rows = np.flatnonzero(shown.bag_index == bag)
    for n, panel in zip(rows, part.subplots(1, len(rows)), strict=True):
        panel.imshow(shown.instances[n].reshape(side, side), cmap="gray_r")
        panel.set(xticks=[], yticks=[])
        panel.set_xlabel(f"{predicted.instance_probability[n]:.2f}\n± {sd_of_instances[n]:.2f}")
        if shown.instance_labels[n]:
            panel.spines[:].set(color="#d55e00", linewidth=3)
if "--out" in sys.argv:
    figure.savefig(sys.argv[sys.argv.index("--out") + 1], dpi=110)
