# %% [markdown]
# # Which engine is reliable, before there are data
#
# Draw a truth from the prior, labels from the truth, fit, and see where the truth lies among the
# draws. Repeat it a thousand times. If an engine's posterior is the model's, the truth is as likely
# in each place (simulation-based calibration); an engine whose sds are too small has it at the
# ends, one whose mean is biased, on one side (VSBC).
#
#     python examples/calibration_of_every_engine.py [--toy] [--out FOLDER]

# %%
import sys
import time
from pathlib import Path

from milzoo.datasets import simulate_instances
from milzoo.diagnostics import calibration_power, simulation_calibration
from milzoo.models import VGPMIL

IS_TOY = "--toy" in sys.argv
SIMULATIONS = 40 if IS_TOY else 1000

# %% [markdown]
# Twenty bags of one to six instances in two dimensions. Instances and bags stay; labels are drawn.

# %%
design = simulate_instances(20, range(1, 7), num_features=2, seed=1)
model = VGPMIL.for_bags(design, num_inducing=5, variance=4.0, length_scale=1.0, mean=-1.5, seed=0)
engines = {
    "coordinate_ascent, mean field": ("coordinate_ascent", {"label_update": "mean_field"}),
    "coordinate_ascent": ("coordinate_ascent", {}),
    "linear_response": ("linear_response", {}),
    "laplace": ("laplace", {}),
    "svi": ("svi", {"max_steps": 1000}),
    "gibbs": ("gibbs", {"num_warmup": 200, "thin": 10}),
    "nuts": ("nuts", {"num_warmup": 200, "thin": 4}),
}


# %%
def calibrated(engine, options):
    """The calibration, and the seconds that it took, compilation included."""
    started = time.perf_counter()
    found = simulation_calibration(
        model, engine, design, seed=2, simulations=SIMULATIONS, **options
    )
    return found, time.perf_counter() - started


# Five inducing values and the log likelihood are ranked.
print(f"{calibration_power(SIMULATIONS, num_quantities=6, seed=0).sentence}.")
found = {name: calibrated(*how) for name, how in engines.items()}


# %% [markdown]
# The deviation of a truth is (truth − posterior mean)/posterior sd. Its root mean square (**rms**)
# over simulations is 1 where sds are right. The mean deviation of the log likelihood is negative
# where a posterior is overconfident: it fits its labels better than the truth does.


# %%
def row(name, calibration, seconds):
    """One engine's."""
    table = calibration.table
    sites = [place for place in table.index if place.startswith("inducing_value")]
    rms = table.loc[sites, "rms_deviation"]
    fit = table.loc["log likelihood"]
    cells = [
        name,
        f"{seconds:.0f}",
        f"{len(calibration.not_uniform)} of {len(table)}",
        f"{table[['p_uniform', 'p_coverage']].min(axis=None):.1g}",
        f"{rms.min():.2f} to {rms.max():.2f}",
        f"{fit['mean_deviation']:+.2f} ± {fit['mean_deviation_error']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


print(
    "| engine | seconds | not uniform | smallest p | rms deviation of u "
    "| mean deviation of the log likelihood |\n"
    "|---|---|---|---|---|---|"
)
for name, (calibration, seconds) in found.items():
    print(row(name, calibration, seconds))
gap = found["nuts"][0].smallest_gap
print(
    f"\n{SIMULATIONS} simulations, seed 2, 99 draws each; seconds with compilation. A distribution "
    f"function that is nowhere {gap:.3f} from uniform passes; an exact engine fails in fewer than "
    "0.01 % of all looks."
)

# %% [markdown]
# Samplers pass. What coordinate ascent gives is too narrow, and more so where labels are taken to
# be independent. Linear response corrects its sds, not its mean.

# %%
if not IS_TOY:
    assert all(found[name][0].is_calibrated for name in ("gibbs", "nuts"))
    assert found["coordinate_ascent"][0].not_uniform
    assert found["coordinate_ascent, mean field"][0].not_uniform
    assert found["linear_response"][0].table["rms_deviation"].iloc[:5].max() < 1.3

# %%
if "--out" in sys.argv:
    folder = Path(sys.argv[sys.argv.index("--out") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    figure = found["coordinate_ascent"][0].plot()
    figure.savefig(folder / "calibration_of_coordinate_ascent.png")
