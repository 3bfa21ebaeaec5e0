# %% [markdown]
# # What does each cluster look like?
#
# Kandemir and Hamprecht (2014), Figure 5, shows patches of three clusters of cancer, each patch of
# another image. Their images are not at hand; bags of ten MNIST digits are, positive with a 2 or a
# 9 among them. DPMIL is told the labels of the bags alone, and never what a digit is. Each row
# below is a cluster, with the digits that are its members most surely, each of another bag.
#
#     MILZOO_DATA=… python examples/exemplars_of_clusters.py [--toy] [--out PICTURE]

# %%
import sys

import numpy as np
from matplotlib import pyplot as plt
from milzoo.datasets import load
from milzoo.estimators import PCAOfInstances
from milzoo.inference import coordinate_ascent
from milzoo.models import DPMIL
from sklearn.metrics import roc_auc_score

IS_TOY = "--toy" in sys.argv
DATA, NUM_BAGS, NUM_COMPONENTS = ("digits", 164, 10) if IS_TOY else ("mnist", 1000, 20)
NUM_STARTS, NUM_DRAWS = (2, 100) if IS_TOY else (5, 200)
CLASSES = ("negative", "positive")
NUM_CLUSTERS, NUM_EXEMPLARS = 6, 8

# %%
bags = load(DATA).select(np.arange(NUM_BAGS))
features = PCAOfInstances(NUM_COMPONENTS).fit_transform(bags)
model = DPMIL.for_bags(features)
posterior = coordinate_ascent(model, features, seed=0, num_starts=NUM_STARTS, num_draws=NUM_DRAWS)

# %% [markdown]
# Labels of instances and their clusters are summed out of the model. Given its unknowns they can be
# drawn, and how often an instance is drawn as a member of a cluster is the probability that it is
# one. Under coordinate ascent a cluster keeps its name from draw to draw; under MCMC it would not.

# %%
draws = model.complete(posterior.stored_draws(), features, seed=0)
membership = np.stack(
    [
        [
            np.mean((draws["instance_label"] == label) & (draws["cluster"] == cluster), axis=0)
            for cluster in range(model.max_components)
        ]
        for label in range(2)
    ]
)


def exemplars(label, cluster):
    """The surest members, the first of each bag: one sure instance says enough of a bag."""
    order = np.argsort(-membership[label, cluster], kind="stable")
    _, first = np.unique(bags.bag_index[order], return_index=True)
    return order[np.sort(first)[:NUM_EXEMPLARS]]


size = membership.sum(axis=2)
largest = np.argsort(-size, axis=1)[:, :NUM_CLUSTERS]
chosen = np.array([[exemplars(label, cluster) for cluster in largest[label]] for label in range(2)])
is_positive = bags.instance_labels[chosen] == 1

# %% [markdown]
# The true labels, which the model never saw, say how pure the rows are. The largest positive
# clusters are ways of writing a 2 or a 9. A smaller one may be of other digits, which positive bags
# have more of by chance: no label tells the model that they are not what makes a bag positive.

# %%
for label, name in enumerate(CLASSES):
    for cluster, truth in zip(largest[label], is_positive[label], strict=True):
        print(
            f"{name} cluster of {size[label, cluster]:.0f} instances: {truth.sum()} of "
            f"{truth.size} exemplars are positive"
        )
probability = posterior.draws_with_estimands["instance_probability"].mean(("chain", "draw"))
of_positive_bags = bags.labels[bags.bag_index] == 1
auc = roc_auc_score(bags.instance_labels[of_positive_bags], probability)
print(f"instances of positive bags: AUC {auc:.3f}")
assert is_positive[0].mean() < 0.05
assert is_positive[1, :4].mean() > 0.9
assert auc > 0.95

# %%
side = round(bags.num_features**0.5)
figure = plt.figure(figsize=(11, 4.6), layout="constrained")
figure.suptitle(
    "Digits that are truly positive are framed. At the left: expected number of instances",
    fontsize=10,
)
for label, part in enumerate(figure.subfigures(1, 2, wspace=0.04)):
    part.suptitle(f"{CLASSES[label]} clusters", fontsize=11)
    for row, panels in enumerate(part.subplots(NUM_CLUSTERS, NUM_EXEMPLARS)):
        for n, panel in zip(chosen[label, row], panels, strict=True):
            panel.imshow(bags.instances[n].reshape(side, side), cmap="gray_r")
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set(linewidth=0.5)
            if bags.instance_labels[n]:
                panel.spines[:].set(color="#d55e00", linewidth=2.5)
        panels[0].set_ylabel(
            f"{size[label, largest[label, row]]:.0f}", rotation=0, ha="right", va="center"
        )
if "--out" in sys.argv:
    figure.savefig(sys.argv[sys.argv.index("--out") + 1], dpi=110)
