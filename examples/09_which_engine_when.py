# %% [markdown]
# # 9. Which engine when
#
# One model, several ways to compute its posterior: an *engine* is one of them. Some are exact if
# they run for long enough, some are quick and approximate. How quick, and how wrong? This notebook
# runs engines on small problems from four families of models, and puts time against error.
#
# The problems are small, and drawn from the models themselves, so that a good sampler tells the
# exact answer up to a known noise. The numbers are those of these problems on this machine. What
# each engine is good at, and where it fails, is more general, and is said in between.
#
#     python examples/09_which_engine_when.py [--toy]

# %%
# %matplotlib inline
import sys
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import compare
from milzoo.inference import coordinate_ascent, gibbs, grid, keep_programs, laplace, nuts, svi
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import VGPMIL, VWSGP, CardinalityModel, DiverseDensity, MajorityCardinality
from scipy.ndimage import maximum_filter

keep_programs()

IS_TOY = "--toy" in sys.argv

# %% [markdown]
# ## The engines
#
# | engine | what it does | what it needs |
# |---|---|---|
# | `coordinate_ascent` | raises a bound by updates in closed form | that somebody derived them |
# | `laplace` | a Gaussian at the mode, with the curvature there | a smooth density |
# | `svi` | fits a Gaussian by stochastic gradients of the bound | a smooth density |
# | `gibbs` | draws each unknown in turn, given all others | that somebody derived the laws |
# | `nuts` | draws all unknowns at once, along the gradient | a smooth density |
# | `grid` | sums the density up | two unknown numbers |

# %%
ENGINES = {
    "coordinate_ascent": coordinate_ascent,
    "laplace": laplace,
    "svi": partial(svi, max_steps=1500),
    "gibbs": partial(gibbs, num_warmup=500, num_samples=5000, num_chains=2),
    "nuts": partial(nuts, num_warmup=300, num_samples=500),
    "grid": partial(grid, num_points=61, num_draws=4000),
}

# %% [markdown]
# ## The problems
#
# - `VGPMIL`: a smooth function says which instances are positive, and a bag is positive if one of
#   its instances is. Eight unknowns.
# - `VWSGP`: a smooth function again, but its values add up over a bag. Eight unknowns.
# - `CardinalityModel` under the majority rule: a bag is positive if half of its instances are. Two
#   unknowns.
# - `DiverseDensity`: there is a place near which instances are positive. Two unknowns, the place
#   and how fast the probability falls around it.
#
# Nobody derived closed-form updates for the last two. (To keep the notebook short not every engine
# that could be run is; with `--toy` one family is.)

# %%
in_two = simulate_instances(40, range(1, 7), num_features=2, seed=1)
in_threes = simulate_instances(60, 3, num_features=2, seed=1)
on_a_line = simulate_instances(60, range(1, 5), num_features=1, seed=1)
PROBLEMS = {
    "VGPMIL": (
        VGPMIL.for_bags(in_two, 8, variance=4.0, length_scale=1.0, mean=-1.5, seed=0),
        in_two,
        ("coordinate_ascent", "laplace", "svi", "gibbs", "nuts"),
    ),
    "VWSGP": (
        VWSGP.for_bags(in_two, 8, variance=1.0, length_scale=1.0, seed=0),
        in_two,
        ("coordinate_ascent", "gibbs", "nuts"),
    ),
    "cardinality": (
        CardinalityModel(MajorityCardinality(), weight_scale=2.0),
        in_threes,
        ("laplace", "nuts"),
    ),
    "diverse density": (DiverseDensity(), on_a_line, ("laplace", "nuts", "grid")),
}
if IS_TOY:
    PROBLEMS = {"VWSGP": PROBLEMS["VWSGP"]}

# %% [markdown]
# ## Run them all
#
# `compare` measures errors against one posterior: the grid where there is one, else the sampler
# whose draws are worth most. The error is that of the mean of an unknown in posterior standard
# deviations, averaged over the unknowns; it cannot be told from zero if it is not larger than its
# Monte-Carlo error.


# %%
def fitted(family):
    """All posteriors of one family on bags drawn from its model."""
    model, design, names = PROBLEMS[family]
    bags, _ = simulate(model, design, seed=6)
    return {name: ENGINES[name](model, bags, seed=0) for name in names}


def compared(family):
    posteriors = fitted(family)
    reference = "grid" if "grid" in posteriors else None
    comparison = compare(posteriors, reference=reference, num_draws=2000)
    print(f"{family}: {comparison.reference_sentence}")
    return comparison


comparisons = {family: compared(family) for family in PROBLEMS}

# %% [markdown]
# ## The table
#
# `seconds` are those of the ascent, or of warm-up and sampling. Compilation stands apart
# (`compile_seconds`): it is paid once, and does not grow with the number of draws.

# %%
COLUMNS = (
    *("status", "seconds", "compile_seconds", "rhat", "ess_bulk", "khat"),
    *("mean_error", "error_mcse", "worst_error", "sd_ratio"),
)
table = pd.concat(
    {family: comparison.table[list(COLUMNS)] for family, comparison in comparisons.items()},
    names=["family", "engine"],
)
print(table.round(3).to_string())

# %% [markdown]
# ## The picture
#
# Left, the error of means; right, how wide the posteriors are. A sampler that served as reference
# has no error to show: it stands, hollow, at the Monte-Carlo error of its own worst unknown. The
# grid is exact, and to be seen on the right only.

# %%
COLOURS = {
    "coordinate_ascent": "#D55E00",
    "laplace": "#E69F00",
    "svi": "#009E73",
    "gibbs": "#56B4E9",
    "nuts": "#0072B2",
    "grid": "#CC79A7",
}
MARKERS = dict(zip(PROBLEMS, "osDv", strict=False))


def draw(panel, column):
    for (family, engine), row in table.iterrows():
        value, is_reference = row[column], np.isnan(row[column])
        if is_reference:
            value = {"mean_error": 1 / np.sqrt(row["ess_bulk"]), "sd_ratio": 1.0}[column]
        colour = COLOURS[engine]
        face = "none" if is_reference else colour
        panel.plot(
            row["seconds"],
            value,
            MARKERS[family],
            ms=8,
            mfc=face,
            mec=colour,
            mew=1.5,
            alpha=0.85,
            zorder=3 if is_reference else 2,
        )
    panel.set(xscale="log", xlim=(3e-3, 30), xlabel="seconds, without compilation")


figure = Figure(figsize=(10, 4.2), layout="constrained")
left, right = figure.subplots(1, 2)
draw(left, "mean_error")
left.set(yscale="log", ylabel="mean error, posterior sds")
draw(right, "sd_ratio")
right.axhline(1.0, color="black", lw=0.8)
right.set(yscale="log", ylabel="sd, as a multiple of the exact one")
right.set_yticks([0.5, 1, 2, 5, 10], minor=False)
right.yaxis.set_major_formatter("{x:g}")
right.yaxis.set_minor_formatter("")
shown = [engine for engine in ENGINES if engine in table.index.get_level_values("engine")]
handles = [Line2D([], [], color=COLOURS[name], marker="o", ls="", label=name) for name in shown]
handles += [Line2D([], [], color="0.3", marker=MARKERS[f], ls="", label=f) for f in PROBLEMS]
figure.legend(handles=handles, frameon=False, loc="outside right upper")
figure

# %% [markdown]
# ## Samplers agree, and differ in what a draw is worth
#
# `VGPMIL` and `VWSGP` have two samplers, which share no code. Their means are equal up to noise.
# What differs is how much a draw depends on the one before. `gibbs` moves one thing at a time. In
# `VWSGP`, which has no labels of instances, a draw is worth more than a fifth of an independent
# one. In `VGPMIL` the label of each instance holds the function in place, and the function the
# label: there a draw is worth less than an eighth.


# %%
def worth(family, engine):
    """Effective draws for each draw, of the worst unknown."""
    draws = comparisons[family].posteriors[engine].tree["posterior"]
    return table.loc[(family, engine), "ess_bulk"] / (draws.sizes["chain"] * draws.sizes["draw"])


for family in [family for family in ("VGPMIL", "VWSGP") if family in PROBLEMS]:
    both = table.loc[family].loc[["gibbs", "nuts"]].dropna(subset="mean_error")
    assert (both["mean_error"] < 3 * both["error_mcse"]).all()
    print(f"{family}: a draw is worth {worth(family, 'gibbs'):.2f} with gibbs, ", end="")
    print(f"{worth(family, 'nuts'):.2f} with nuts")
assert worth("VWSGP", "gibbs") > 1 / 5
if not IS_TOY:
    assert worth("VGPMIL", "gibbs") < 1 / 8

# %% [markdown]
# ## Coordinate ascent is quick, and too sure
#
# Where updates in closed form exist, they come to an end sooner than any sampler. Means are off by
# a part of a posterior sd. The sds are too small in every family: by a fifth where one bound is
# made for each bag (`VWSGP`), by half where one is made for each instance (`VGPMIL`).

# %%
ascents = table.xs("coordinate_ascent", level="engine")
print(ascents[["seconds", "mean_error", "sd_ratio"]].round(3).to_string())
assert (ascents["sd_ratio"] < 0.95).all()
for family, row in ascents.iterrows():
    samplers = table.loc[family].drop("coordinate_ascent").dropna(subset="ess_bulk")
    assert row["seconds"] < samplers["seconds"].min()
if not IS_TOY:
    assert ascents.loc["VGPMIL", "sd_ratio"] < 0.6
    assert 0.7 < ascents.loc["VWSGP", "sd_ratio"] < 0.9

# %% [markdown]
# ## One hill: Laplace has the width, stochastic gradients the place as well
#
# In `VGPMIL` and the cardinality model all chains are on one hill. Laplace's Gaussian is about as
# wide as it. But the hill is skewed, and the Gaussian stands at its top: the mean is off by a tenth
# to a third of an sd. The Gaussian that `svi` finds is placed by the mean. Its error is a small
# part of Laplace's, for more seconds.

# %%
if not IS_TOY:
    one_hill = table.loc[["VGPMIL", "cardinality"]]
    at_the_top = one_hill.xs("laplace", level="engine")
    print(at_the_top[["seconds", "mean_error", "error_mcse", "sd_ratio"]].round(3).to_string())
    assert one_hill.xs("nuts", level="engine")["rhat"].max() < 1.02
    assert at_the_top["sd_ratio"].between(0.85, 1.1).all()
    assert (at_the_top["mean_error"] > 2 * at_the_top["error_mcse"]).all()
    by_gradients = table.loc[("VGPMIL", "svi")]
    assert by_gradients["mean_error"] < 0.3 * at_the_top.loc["VGPMIL", "mean_error"]
    assert by_gradients["seconds"] > at_the_top.loc["VGPMIL", "seconds"]

# %% [markdown]
# ## Many hills: what an engine does not see
#
# Diverse density has as many places to try as there are instances. Its log density on a lattice:


# %%
def tops(model, bags):
    """Log densities at the tops of all hills, the highest first, less its own."""
    axis = np.linspace(-3, 3, 161)
    concept, scale = np.meshgrid(axis, np.exp(axis))
    draws = {"concept": concept.reshape(-1, 1), "scale": scale.reshape(-1, 1)}
    density = log_joint(model, "marginal", draws, bags).reshape(concept.shape)
    heights = np.sort(density[density == maximum_filter(density, 3)])[::-1]
    return heights - heights[0]


if not IS_TOY:
    heights = tops(DiverseDensity(), comparisons["diverse density"].posteriors["grid"].bags)
    print(f"{len(heights)} hills, of log heights {heights[:4].round(1)} and so on")
    assert len(heights) > 10
    assert heights[1] < -20

# %% [markdown]
# One hill has all of the posterior, and the others next to nothing. But whoever starts on one of
# these does not get down again. `laplace` climbs the hill that it starts at and says that it
# converged, which is true; it is many posterior sds away from where the posterior is. The chains of
# `nuts` stay on different hills. Their common mean is worthless, but they disagree, and so
# $\hat R$ (`rhat`, near 1 if chains agree) gives them away. The grid, which looks around before it
# settles, finds the highest hill here.

# %%
if not IS_TOY:
    many = table.loc["diverse density"]
    print(many[["status", "rhat", "mean_error", "error_mcse", "khat"]].round(2).to_string())
    assert many.loc["laplace", "status"] == "converged"
    assert (many.loc[["laplace", "nuts"], "mean_error"] > 3).all()
    assert many.loc["nuts", "status"] == "not mixed"
    assert many.loc["nuts", "rhat"] > 1.5

# %% [markdown]
# ## Most of the waiting is compilation
#
# For problems as small as these it takes longer to compile an engine than to run it. So on small
# data the quickest engine is the one that is already compiled, and a sampler costs little more than
# an approximation. It is on large data, or in a loop over many models, that the seconds count.

# %%
is_compiling = table["compile_seconds"] > table["seconds"]
print(f"compilation takes longer than the run in {is_compiling.sum()} of {len(table)} rows")
assert is_compiling.mean() > 0.5

# %% [markdown]
# ## So, which?
#
# - **To report a posterior**: `nuts`. Where the model has one, `gibbs` beside it, as they share no
#   code.
# - **To try many models, or for large data**: `coordinate_ascent`. Trust its ranking of bags and
#   instances more than its intervals.
# - **No closed form, one hill**: `laplace` for a first look, `svi` for a mean that is right.
# - **Two unknowns**: `grid`.
# - **In doubt**: chains from several starts, two engines, and `compare`, as here. An engine that
#   says that it converged says nothing of what it has not seen.
