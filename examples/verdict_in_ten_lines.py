from milzoo.datasets import load
from milzoo.diagnostics import compare
from milzoo.inference import coordinate_ascent, nuts
from milzoo.models import VGPMIL

train, test = load("digits").split(0.7, seed=0)
train, test = train.standardize(), test.standardize(train)
model = VGPMIL.for_bags(train, variance=5.0, length_scale=8.0, mean=-3.0)
vi, mcmc = coordinate_ascent(model, train, seed=0), nuts(model, train, seed=0)
comparison = compare({"CAVI": vi, "NUTS": mcmc}, test=test)
print(comparison.table.T, *comparison.sentences.values(), sep="\n")
