"""What every model gives with every engine that takes it, the registries saying which these are.

One fit of each pair serves all of its tests. A pair is quick or slow by `QUICK`: each engine and
each model is among the quick ones, or those that CI has.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse
from milzoo.datasets import Bags
from milzoo.inference import (
    ENGINES,
    Posterior,
    coordinate_ascent,
    ensemble,
    gibbs,
    grid,
    laplace,
    maximum_a_posteriori,
    natural_gradient,
    nuts,
    pathfinder,
    svi,
    tempered_smc,
)
from milzoo.inference.closed_form import closed_form
from milzoo.inference.gibbs.sweep import sweep_of
from milzoo.models import (
    BMIL,
    DPMIL,
    GPMIL,
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    CoupledVGPMIL,
    DiverseDensity,
    GammaScaleMixture,
    Gaussian,
    NegativeBinomial,
    Probit,
    ProbitGPMIL,
    ScoreThreshold,
    StudentT,
)
from milzoo.models.registry import models_by_name

NUM_INDUCING = 5

# ------------------------------------------------------------------ what is fitted with what


def variance_for(bags: Bags) -> float:
    """A number that differs from fit to fit: it is an argument of programs too."""
    return 1.0 + bags.num_bags / 100


def vgpmil(bags: Bags, **fields: Any) -> VGPMIL:
    return VGPMIL.as_published(bags, NUM_INDUCING, variance=variance_for(bags), **fields)


def coupled_vgpmil(bags: Bags, **fields: Any) -> CoupledVGPMIL:
    # At other couplings the residuals of the two fits would need rules of two sizes.
    chosen = {"variance": variance_for(bags), "coupling": variance_for(bags) / 5}
    return CoupledVGPMIL.as_published(bags, NUM_INDUCING, **chosen, **fields)


def vwsgp(bags: Bags, **fields: Any) -> VWSGP:
    return VWSGP.as_published(bags, NUM_INDUCING, variance=variance_for(bags), **fields)


def gpmil(bags: Bags) -> GPMIL:
    return GPMIL.as_published(bags, NUM_INDUCING, variance=variance_for(bags), mean=-0.5)


def probit_gpmil(bags: Bags) -> ProbitGPMIL:
    return ProbitGPMIL.as_published(bags, NUM_INDUCING, variance=variance_for(bags), mean=-0.5)


def cardinality_gp(bags: Bags) -> CardinalityGP:
    kernel = CardinalityKernel(CardinalityModel(), np.array([0.5, -0.3]), RBF(1.0, 1.0))
    return CardinalityGP.at_bags(kernel, bags.select(range(NUM_INDUCING)), variance_for(bags))


MODELS: dict[str, Callable[[Bags], Any]] = {
    "VGPMIL": vgpmil,
    "VGPMIL gamma": partial(vgpmil, scale_mixture=GammaScaleMixture(1.0, 2.5)),
    "CoupledVGPMIL": coupled_vgpmil,
    "VWSGP logistic": vwsgp,
    "VWSGP probit": partial(vwsgp, likelihood=Probit()),
    "VWSGP gaussian": partial(vwsgp, likelihood=Gaussian()),
    "VWSGP student": partial(vwsgp, likelihood=StudentT(4.0, 0.7)),
    "VWSGP negative binomial": partial(vwsgp, likelihood=NegativeBinomial(3)),
    "CardinalityGP": cardinality_gp,
    "DPMIL": partial(DPMIL.for_bags, max_components=2),
    "DPMIL diagonal": partial(DPMIL.for_bags, max_components=2, covariance="diagonal"),
    "CardinalityModel": lambda bags: CardinalityModel(weight_scale=variance_for(bags)),
    "DiverseDensity": DiverseDensity.for_bags,
    "BMIL": BMIL.for_bags,
    "GPMIL": gpmil,
    "ProbitGPMIL": probit_gpmil,
    "ScoreThreshold": lambda bags: ScoreThreshold(),
}

CHAINS = {"num_warmup": 20, "num_samples": 20, "num_chains": 2}


@dataclass(frozen=True)
class Engine:
    """An engine with options, and the models it is for."""

    run: Callable[..., Posterior]
    options: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = tuple(MODELS)


UPDATES = {"mean_field": "VGPMIL", "plug_in_max": "VGPMIL", "hard": "DPMIL"}
LEARNABLE = tuple(
    name
    for name in MODELS
    if name in ("VGPMIL", "CoupledVGPMIL", "ProbitGPMIL") or name.startswith("VWSGP")
)
SETTINGS: dict[str, Engine] = {
    "coordinate_ascent": Engine(coordinate_ascent, {"max_steps": 5}),
    **{
        f"coordinate_ascent {update}": Engine(
            coordinate_ascent, {"max_steps": 5, "label_update": update}, (model,)
        )
        for update, model in UPDATES.items()
    },
    "coordinate_ascent learning": Engine(
        coordinate_ascent,
        {"max_steps": 5, "learn_hyperparameters": True},
        (*LEARNABLE, "CardinalityGP"),
    ),
    "natural_gradient": Engine(natural_gradient, {"max_steps": 5}),
    "laplace": Engine(laplace),
    "gibbs": Engine(gibbs, CHAINS),
    "nuts": Engine(nuts, CHAINS),
    "maximum_a_posteriori": Engine(maximum_a_posteriori, {"max_steps": 50}),
    "svi": Engine(svi, {"max_steps": 20}),
    "svi flow": Engine(
        svi, {"max_steps": 20, "guide": "flow"}, ("VGPMIL", "VWSGP logistic", "DiverseDensity")
    ),
    "pathfinder": Engine(pathfinder, {"num_paths": 2, "max_steps": 10}),
    "grid": Engine(grid, {"num_points": 31}),
    "ensemble": Engine(
        ensemble, {"num_warmup": 20, "num_samples": 20, "num_chains": 4, "num_superchains": 2}
    ),
    "tempered_smc": Engine(
        tempered_smc, {"num_particles": 20, "num_chains": 2, "num_moves": 1, "dispersion": 1.0}
    ),
}
# Pairs that the engine refuses, each with what the message says.
REFUSALS = {
    **{
        (engine, model): "has no closed form"
        for engine in ("coordinate_ascent", "natural_gradient")
        for model in ("BMIL", "CardinalityModel", "DiverseDensity", "GPMIL", "ScoreThreshold")
    },
    ("natural_gradient", "CardinalityGP"): "kernel is between all bags",
    **{
        ("gibbs", name): "has no Gibbs sampler"
        for name in ("BMIL", "CardinalityModel", "DiverseDensity", "GPMIL", "ScoreThreshold")
    },
    **{
        ("grid", name): "grid is for 2"
        for name in MODELS
        if name not in ("CardinalityModel", "ScoreThreshold")
    },
}
PAIRS = [
    (engine, model)
    for engine, setting in SETTINGS.items()
    for model in setting.models
    if (engine, model) not in REFUSALS
]
# These and `IN_CI` have one pair at least of every engine and of every model.
QUICK = {
    *(("coordinate_ascent", model) for model in ("VGPMIL", "VWSGP logistic", "VWSGP student")),
    ("coordinate_ascent", "VWSGP negative binomial"),
    ("coordinate_ascent", "ProbitGPMIL"),
    ("coordinate_ascent", "CoupledVGPMIL"),
    ("coordinate_ascent mean_field", "VGPMIL"),
    ("coordinate_ascent plug_in_max", "VGPMIL"),
    ("natural_gradient", "VWSGP logistic"),
    ("laplace", "VWSGP probit"),
}
# Several seconds to compile each, and ten where there is the quadrature of a soft maximum.
IN_CI = {
    ("coordinate_ascent", "DPMIL diagonal"),
    ("coordinate_ascent hard", "DPMIL"),
    ("coordinate_ascent", "CardinalityGP"),
    ("coordinate_ascent learning", "VWSGP gaussian"),
    ("laplace", "BMIL"),
    ("laplace", "GPMIL"),
    ("gibbs", "VWSGP logistic"),
    ("gibbs", "ProbitGPMIL"),
    ("gibbs", "CoupledVGPMIL"),
    ("natural_gradient", "CoupledVGPMIL"),
    ("nuts", "VGPMIL gamma"),
    ("maximum_a_posteriori", "CardinalityModel"),
    ("svi", "DiverseDensity"),
    ("grid", "ScoreThreshold"),
    *(
        (engine, "DiverseDensity")
        for engine in ("svi flow", "pathfinder", "ensemble", "tempered_smc")
    ),
}


def mark_of(pair: tuple[str, str]) -> tuple[pytest.MarkDecorator, ...]:
    if pair in QUICK:
        return ()
    return (pytest.mark.in_ci if pair in IN_CI else pytest.mark.slow,)


every_pair = pytest.mark.parametrize(
    ("engine", "model"),
    [pytest.param(*pair, marks=mark_of(pair), id="-".join(pair)) for pair in PAIRS],
)

# ------------------------------------------------------------------ bags of like size


def bags_of_like_size(num_positive: int, num_negative: int, seed: int) -> Bags:
    """Bags of 1 to 5 instances with labels, counts as targets and edges, in a random order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat([1, 0], [num_positive, num_negative]))
    sizes = np.empty(labels.size, int)
    for label in (0, 1):
        sizes[labels == label] = np.resize([2, 3, 1, 5, 3], np.sum(labels == label))
    instances = [random.normal(label, 1.0, (n, 2)) for n, label in zip(sizes, labels, strict=True)]
    bags = Bags.from_list(instances, labels=labels).with_targets(random.poisson(1.0 + labels))
    return bags.with_edges([in_a_row(size) for size in sizes.tolist()])


def in_a_row(size: int) -> scipy.sparse.csr_array:
    """Each instance has those beside it as neighbours."""
    return scipy.sparse.csr_array(np.eye(size, k=1) + np.eye(size, k=-1))


# 42 bags and 116 instances, 43 and 119: one size of the grid for both, also of the positive ones.
FIRST, SECOND = bags_of_like_size(21, 21, seed=1), bags_of_like_size(22, 21, seed=2)
NEW = bags_of_like_size(4, 4, seed=3)


def fitted(engine: str, model: str, bags: Bags) -> Posterior:
    setting = SETTINGS[engine]
    return setting.run(MODELS[model](bags), bags, seed=0, **setting.options)


@cache
def fit(engine: str, model: str) -> Posterior:
    """To the first bags; asked for predictions, so that their programs are compiled too."""
    posterior = fitted(engine, model, FIRST)
    posterior.predict(FIRST)
    return posterior


def predicted(posterior: Posterior, bags: Bags) -> tuple[np.ndarray, np.ndarray]:
    """What is predicted of bags, and of their instances."""
    bag, instance = posterior.predict(bags).columns().values()
    return bag, instance


# ------------------------------------------------------------------ the registries


def test_every_registered_model_is_among_these():
    known = {model.name for model in (make(FIRST) for make in MODELS.values())}
    assert set(models_by_name()) <= known


def test_every_engine_is_among_these():
    """But PyMC's, whose programs are compiled by Numba: tests/models/pymc has them."""
    known = {setting.run.__name__ for setting in SETTINGS.values()}
    assert set(ENGINES) - known == {"pymc_nuts"}


def test_pairs_in_ci_have_every_engine_and_model():
    assert set(PAIRS) >= QUICK | IN_CI
    assert {engine for engine, _ in QUICK | IN_CI} == set(SETTINGS)
    assert {model for _, model in QUICK | IN_CI} == set(MODELS)


@pytest.mark.parametrize(
    ("registry", "engine"), [(closed_form, "coordinate_ascent"), (sweep_of, "gibbs")]
)
def test_a_model_is_taken_where_it_is_registered(registry, engine):
    for name, make in MODELS.items():
        is_registered = registry.dispatch(type(make(FIRST))) is not registry.dispatch(object)
        assert is_registered == ((engine, name) not in REFUSALS)


@pytest.mark.in_ci
@pytest.mark.parametrize(("pair", "message"), REFUSALS.items(), ids=map("-".join, REFUSALS))
def test_a_pair_that_does_not_go_is_refused(pair, message):
    with pytest.raises((NotImplementedError, ValueError), match=message):
        fitted(*pair, FIRST)


# ------------------------------------------------------------------ compiled once


def test_the_counter_sees_a_compilation(compilations):
    before = compilations.number
    jax.jit(lambda x: 3 * x + 1)(np.ones(2)).block_until_ready()
    assert compilations.number == before + 1


@pytest.mark.in_ci
@every_pair
def test_a_second_fit_compiles_nothing(engine, model, compilations):
    """Nor do its predictions; and its seconds add up."""
    fit(engine, model)
    before = compilations.number
    second = fitted(engine, model, SECOND)
    second.predict(SECOND)
    assert compilations.number == before
    # Clocks are read one after another: a millisecond for what lies between.
    assert second.wall_seconds >= second.seconds + second.compile_seconds - 1e-3


# ------------------------------------------------------------------ what is left behind


@every_pair
def test_a_saved_posterior_predicts_the_same(engine, model, tmp_path):
    posterior = fit(engine, model)
    posterior.save(tmp_path / "posterior.nc")
    loaded = Posterior.load(tmp_path / "posterior.nc")
    for ours, theirs in zip(predicted(posterior, NEW), predicted(loaded, NEW), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@every_pair
def test_predictions_need_no_labels(engine, model):
    posterior = fit(engine, model)
    unlabelled = replace(NEW, labels=None, targets=None, instance_labels=None)
    bag, instance = predicted(posterior, unlabelled)
    assert bag.shape == (NEW.num_bags,) and instance.shape == (NEW.num_instances,)
    assert np.isfinite(bag).all() and np.isfinite(instance).all()
    for ours, theirs in zip((bag, instance), predicted(posterior, NEW), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@every_pair
def test_the_order_of_bags_and_instances_is_no_matter(engine, model):
    posterior = fit(engine, model)
    graphs = [in_a_row(size) for size in NEW.bag_sizes[::-1].tolist()]  # the same, turned round
    turned = Bags.from_list([rows[::-1] for rows in reversed(NEW.to_list())]).with_edges(graphs)
    bag, instance = predicted(posterior, NEW)
    of_turned, instance_of_turned = predicted(posterior, turned)
    np.testing.assert_allclose(of_turned[::-1], bag, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(instance_of_turned[::-1], instance, rtol=1e-9, atol=1e-12)


@every_pair
def test_a_bag_of_one_is_predicted_alone(engine, model):
    """As among others: a bag knows nothing of the bags beside it."""
    posterior = fit(engine, model)
    alone = int(np.flatnonzero(NEW.bag_sizes == 1)[0])
    bag, instance = predicted(posterior, NEW.select([alone]))
    of_all, instance_of_all = predicted(posterior, NEW)
    np.testing.assert_allclose(bag, of_all[alone], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(instance, instance_of_all[NEW.starts[alone]], rtol=1e-9, atol=1e-12)


@every_pair
def test_draws_are_64_bit_and_the_flag_stays(engine, model):
    assert not jax.config.jax_enable_x64
    for name, values in fit(engine, model).stored_draws().items():
        assert values.dtype in (np.float64, np.int64, np.int32), name
