# %% [markdown]
# # Which instances are the witnesses, and how many kinds of them are there?
#
# Kandemir and Hamprecht (2014), Figures 1 and 4, on a scene whose answer is known: instances of all
# bags come from three clusters, and in positive bags some come from two others. DPMIL is told the
# labels of the bags alone, neither those of the instances nor how many clusters there are.
#
#     python examples/clusters_of_witnesses.py [--toy] [--out FOLDER]

# %%
import sys
from pathlib import Path

import numpy as np
from milzoo.datasets import load
from milzoo.diagnostics import plot_components, plot_scene
from milzoo.inference import coordinate_ascent, gibbs
from milzoo.models import DPMIL
from sklearn.metrics import roc_auc_score

NUM_DRAWS = 250 if "--toy" in sys.argv else 1000

# %%
bags = load("kandemir2014")
model = DPMIL.for_bags(bags)
posteriors = {
    "coordinate ascent": coordinate_ascent(model, bags, seed=0),
    "gibbs": gibbs(model, bags, seed=0, num_warmup=250, num_samples=NUM_DRAWS),
}

# %%
scene, components = plot_scene(posteriors), plot_components(posteriors)
if "--out" in sys.argv:
    folder = Path(sys.argv[sys.argv.index("--out") + 1])
    scene.savefig(folder / "kandemir2014_scene.png", dpi=110)
    components.savefig(folder / "kandemir2014_components.png", dpi=110)

# %% [markdown]
# What the pictures say, checked, for the instances of positive bags, whose labels nobody gave:
#
# - Who knows the five clusters that the scene was drawn from ranks them with an AUC of 0.98, as one
#   cluster of witnesses overlaps with a negative one. The posteriors, which had to find the
#   clusters, lose less than 0.03 of that.
# - Both engines mean the same instances: where Gibbs sampling is sure, coordinate ascent is on its
#   side, and no more than one in twenty is on the other side of ½ at all.
# - Three clusters of negative instances and two of witnesses have a tenth of their class or more.
#   More are occupied: the prior expects a few of one or two instances among so many.

# %%
is_free = bags.labels[bags.bag_index] == 1
witness = bags.instance_labels[is_free]
probability = {}
for name, posterior in posteriors.items():
    draws = posterior.draws_with_estimands
    probability[name] = draws["instance_probability"].mean(("chain", "draw")).to_numpy()
    auc = roc_auc_score(witness, probability[name])
    weight = posterior.model.weights(posterior.stored_draws())
    # Sorted in each draw: clusters have no names.
    large = (-np.sort(-weight, axis=2).mean(axis=0) > 0.1).sum(axis=1)
    occupied = draws["occupied_components"].mean(("chain", "draw")).to_numpy()
    print(
        f"{name}: AUC {auc:.3f}; {large[0]} large negative clusters and {large[1]} positive ones, "
        f"{occupied[0]:.1f} and {occupied[1]:.1f} with an instance in them"
    )
    assert auc > 0.95
    assert large.tolist() == [3, 2]
    assert (occupied >= large).all()

variational, sampled = probability.values()
is_sure = np.abs(sampled - 0.5) > 0.4
agree = (variational > 0.5) == (sampled > 0.5)
print(f"they agree on {agree.sum()} of {len(agree)} instances, on {is_sure.sum()} for sure")
assert agree[is_sure].all()
assert agree.mean() > 0.95
