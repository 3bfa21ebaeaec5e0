from milzoo.datasets import load
from milzoo.diagnostics import cross_validate_bags
from milzoo.estimators import BayesianMIL, MIKernelSVM, StandardizeInstances
from sklearn.pipeline import make_pipeline

bags = load("digits")
methods = {name: BayesianMIL(name, "coordinate_ascent", seed=0) for name in ("vgpmil", "vwsgp")}
methods["MI-Kernel"] = MIKernelSVM()
scaled = {name: make_pipeline(StandardizeInstances(), one) for name, one in methods.items()}
found = cross_validate_bags(scaled, bags, folds=5, seed=0)
print(found, found.differences("auc"), sep="\n\n")
