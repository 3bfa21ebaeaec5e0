"""Wrong fields and arguments are refused at the door, by name, in one style."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from milzoo.datasets import Bags, load, simulate_instances
from milzoo.diagnostics import compare
from milzoo.diagnostics.measures.reliability import reliability
from milzoo.inference import ENGINES
from milzoo.models import (
    BMIL,
    DPMIL,
    GPMIL,
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityModel,
    CoupledVGPMIL,
    DiverseDensity,
    GammaScaleMixture,
    Gaussian,
    NegativeBinomial,
    NeighbourScore,
    NormalCardinality,
    ParzenScore,
    Probit,
    ScoreThreshold,
    StudentT,
)
from milzoo.models.model import random_key

BAGS = Bags.from_list([np.eye(3), -np.eye(3), np.ones((1, 3))], [1, 0, 1])
POINTS = np.eye(2)

# Never right for a field that is a number.
NO_NUMBERS = [None, "1", [1.0, 2.0], (1.0,), {}, 1 + 1j, True, float, object, np.zeros(2), b"1"]
NO_NUMBERS += [float("nan"), np.array("1"), np.datetime64("2020-01-01"), set(), range(3)]
NO_COUNTS = [None, "5", 2.5, True, 0, -1, [3], np.array([3]), float("inf"), 3.0, 1j]
NO_SEEDS = [None, "0", 1.5, True, [0], np.array([1, 2])]

NUMBERS = {
    "RBF variance": lambda value: RBF(value, 1.0),
    "RBF length_scale": lambda value: RBF(1.0, value),
    "VGPMIL mean": lambda value: VGPMIL(RBF(1.0, 1.0), POINTS, mean=value),
    "VGPMIL sharpness": lambda value: VGPMIL(RBF(1.0, 1.0), POINTS, sharpness=value),
    "VGPMIL jitter": lambda value: VGPMIL(RBF(1.0, 1.0), POINTS, jitter=value),
    "CoupledVGPMIL coupling": lambda value: CoupledVGPMIL(RBF(1.0, 1.0), POINTS, coupling=value),
    "GammaScaleMixture alpha": lambda value: GammaScaleMixture(value, 1.0),
    "GammaScaleMixture beta": lambda value: GammaScaleMixture(1.0, value),
    "Probit noise": lambda value: Probit(value),
    "Gaussian noise": lambda value: Gaussian(value),
    "StudentT degrees_of_freedom": lambda value: StudentT(value),
    "StudentT scale": lambda value: StudentT(4.0, value),
    "NormalCardinality mu": lambda value: NormalCardinality(mu=value),
    "NormalCardinality sigma": lambda value: NormalCardinality(sigma=value),
    "CardinalityModel weight_scale": lambda value: CardinalityModel(weight_scale=value),
    "ParzenScore width": lambda value: ParzenScore(value),
    "DPMIL degrees_of_freedom": lambda value: DPMIL(np.zeros(1), np.ones(1), value),
    "DPMIL mean_strength": lambda value: DPMIL(np.zeros(1), np.ones(1), 2.0, mean_strength=value),
    "DPMIL concentration": lambda value: DPMIL(np.zeros(1), np.ones(1), 2.0, concentration=value),
    "DPMIL positive_fraction": lambda value: DPMIL(
        np.zeros(1), np.ones(1), 2.0, positive_fraction=value
    ),
    "BMIL shape": lambda value: BMIL(shape=value),
    "BMIL rate": lambda value: BMIL(rate=value),
    "BMIL intercept_scale": lambda value: BMIL(intercept_scale=value),
    "BMIL intercept_mean": lambda value: BMIL(intercept_mean=value),
    "DiverseDensity scale_prior": lambda value: DiverseDensity(scale_prior=value),
    "ScoreThreshold softness_prior": lambda value: ScoreThreshold(softness_prior=value),
}
COUNTS = {
    "NeighbourScore k": lambda value: NeighbourScore(k=value),
    "NegativeBinomial total_count": lambda value: NegativeBinomial(value),
    "DPMIL max_components": lambda value: DPMIL(np.zeros(1), np.ones(1), 2.0, max_components=value),
    "num_inducing": lambda value: VGPMIL.for_bags(BAGS, num_inducing=value, seed=0),
    "k": lambda value: list(BAGS.folds(value, seed=0)),
    "repeats": lambda value: list(BAGS.folds(2, repeats=value, seed=0)),
    "num_bags": lambda value: simulate_instances(value, 1, 1, seed=0),
    "bag_size": lambda value: simulate_instances(1, value, 1, seed=0),
    "num_features": lambda value: simulate_instances(1, 1, value, seed=0),
}
SEEDED = {
    "VGPMIL": lambda seed: VGPMIL.for_bags(BAGS, 2, seed=seed),
    "VWSGP": lambda seed: VWSGP.for_bags(BAGS, 2, seed=seed),
    "as published": lambda seed: VGPMIL.as_published(BAGS, 2, seed=seed),
    "GPMIL": lambda seed: GPMIL.for_bags(BAGS, 2, seed=seed),
    "DPMIL": lambda seed: DPMIL.for_bags(BAGS, covariance="diagonal", seed=seed),
    "BMIL": lambda seed: BMIL.for_bags(BAGS, seed=seed),
    "DiverseDensity": lambda seed: DiverseDensity.for_bags(BAGS, seed=seed),
    "CardinalityModel": lambda seed: CardinalityModel.for_bags(BAGS, seed=seed),
    "split": lambda seed: BAGS.split(0.5, seed=seed),
    "folds": lambda seed: list(BAGS.folds(2, seed=seed)),
    "simulate_instances": lambda seed: simulate_instances(2, 1, 1, seed=seed),
    "key": random_key,
}


def refuses(call, value, name):
    """Check that a value is refused, with its name, what was found and what was expected."""
    with pytest.raises((ValueError, TypeError), match=f"^{name} is ") as error:
        call(value)
    assert "; expected " in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("name", NUMBERS)
def test_a_field_that_is_no_number_is_refused(name):
    for value in NO_NUMBERS:
        refuses(NUMBERS[name], value, name)


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_is_none_is_refused(name):
    for value in NO_COUNTS:
        if name == "num_inducing" and value is None:
            continue  # an inducing point at each instance
        refuses(COUNTS[name], value, name)


@pytest.mark.parametrize("of", SEEDED)
def test_a_seed_that_is_none_is_refused(of):
    for seed in NO_SEEDS:
        with pytest.raises(TypeError, match=r"seed is .*; expected an int"):
            SEEDED[of](seed)
    for seed in (-1, 2**32, 2**33, -(2**40), np.int64(-5)):
        with pytest.raises(ValueError, match=f"seed is {seed}; expected an integer from 0 to 4294"):
            SEEDED[of](seed)
    SEEDED[of](2**32 - 1), SEEDED[of](np.uint32(7))


def test_data_sets_that_are_drawn_have_these_seeds():
    with pytest.raises(ValueError, match="seed is -1; expected an integer from 0"):
        load("kandemir2014", seed=-1)
    with pytest.raises(TypeError, match="seed is '1'; expected an integer from 0"):
        load("kandemir2014", seed="1")


OBJECTS = {
    "VGPMIL kernel": lambda value: VGPMIL(value, POINTS),
    "VGPMIL scale_mixture": lambda value: VGPMIL(RBF(1.0, 1.0), POINTS, scale_mixture=value),
    "VWSGP likelihood": lambda value: VWSGP(RBF(1.0, 1.0), POINTS, likelihood=value),
    "CardinalityModel potential": lambda value: CardinalityModel(potential=value),
    "CardinalityModel weight_prior": lambda value: CardinalityModel(weight_prior=value),
    "CardinalityModel intercept_scale": lambda value: CardinalityModel(intercept_scale=value),
    "DPMIL supervision": lambda value: DPMIL(np.zeros(1), np.ones(1), 2.0, supervision=value),
    "DPMIL needs_witness": lambda value: DPMIL(np.zeros(1), np.ones(1), 2.0, needs_witness=value),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_of_another_class_is_refused(name):
    for value in ("gamma", -3, [1], {}, POINTS, GammaScaleMixture, Probit, NormalCardinality, RBF):
        refuses(OBJECTS[name], value, name)


@pytest.mark.parametrize(
    "value", ["abc", [["a"]], [[1j]], {}, object(), np.array(["2020"], "M8[D]")]
)
def test_inducing_points_that_are_no_numbers_are_refused(value):
    with pytest.raises((ValueError, TypeError), match="VGPMIL inducing_points h"):
        VGPMIL(RBF(1.0, 1.0), value)


@pytest.mark.parametrize("fraction", ["half", None, 0, 1, 1.5, -0.1, True, [0.5], float("nan"), 1j])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ValueError, match=r"fraction is .*; expected a number between 0 and 1"):
        BAGS.split(fraction, seed=0)


@pytest.mark.in_ci
@given(
    some.one_of(
        some.none(),
        some.booleans(),
        some.text(),
        some.integers(),
        some.complex_numbers(),
        some.floats(),
        some.lists(some.floats()),
        some.dictionaries(some.text(), some.integers()),
    )
)
def test_a_kernel_is_made_of_positive_numbers_alone(value):
    """Whatever is given: a kernel with that number, or an error with its name."""
    is_right = type(value) in (int, float) and 0 < value < np.inf
    if is_right:
        kernel = RBF(value, 1.0)
        assert kernel.variance == value and type(kernel.variance) in (int, float)
    else:
        with pytest.raises(ValueError, match=r"^RBF variance is "):
            RBF(value, 1.0)


# ------------------------------------------------------------------- arguments of engines

MODEL = VGPMIL(RBF(1.0, 1.0), np.eye(3)[:2], mean=-1.0)
every_engine = pytest.mark.parametrize(
    "engine", ENGINES.values(), ids=lambda engine: engine.__name__
)

# Never right where the default is an integer, a number, a truth value or a word.
_WRONG = {
    int: [None, "5", 2.5, True, -1, [3], float("nan"), 1j],
    float: [None, "5", True, -1.0, [3], float("nan"), 1j],
    bool: [None, "no", 1, 0.0, [True]],
    str: [None, "unknown", 3, True, [3]],
    tuple: [None, 3, True, [3], {}],
}


def _options(engine):
    """Options with a default that tells the type."""
    for name, parameter in inspect.signature(engine).parameters.items():
        if type(parameter.default) in _WRONG:
            yield name, _WRONG[type(parameter.default)]


@every_engine
def test_an_option_that_is_none_is_refused(engine):
    for name, values in _options(engine):
        for value in values:
            with pytest.raises(ValueError, match=rf"^{name} is .*expected "):
                engine(MODEL, BAGS, seed=0, **{name: value})


@every_engine
def test_a_model_that_is_none_is_refused(engine):
    for model in (VGPMIL, BAGS, None, "vgpmil", RBF(1.0, 1.0), np.eye(2), {}):
        with pytest.raises(TypeError, match=r"^model is .*; expected a model, such as"):
            engine(model, BAGS, seed=0)


@every_engine
def test_bags_that_are_none_are_refused(engine):
    for bags in (MODEL, None, "digits", [np.eye(3)], np.eye(3), {"a": np.eye(3)}, Bags):
        with pytest.raises(TypeError, match=r"^bags is .*; expected Bags, such as"):
            engine(MODEL, bags, seed=0)


@every_engine
def test_an_engine_refuses_a_seed_that_is_none(engine):
    for seed in NO_SEEDS:
        with pytest.raises(TypeError, match=r"seed is .*; expected an int or a JAX key"):
            engine(MODEL, BAGS, seed=seed)
    with pytest.raises(ValueError, match="seed is -1; expected an integer from 0 to"):
        engine(MODEL, BAGS, seed=-1)


@every_engine
def test_a_missing_argument_is_named(engine):
    with pytest.raises(TypeError, match=r"missing 1 required .* 'seed'"):
        engine(MODEL, BAGS)
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
        engine(MODEL, BAGS, seed=0, steps=3)


# ------------------------------------------------------------------------- diagnostics


def test_a_comparison_of_something_else_is_refused():
    with pytest.raises(TypeError, match="posteriors has a VGPMIL as 'cavi'; expected a Posterior"):
        compare({"cavi": MODEL})
    with pytest.raises(TypeError, match="posteriors is a list; expected a mapping"):
        compare([MODEL])


def test_seeds_of_diagnostics_are_those_of_all():
    for seed in NO_SEEDS:
        with pytest.raises(TypeError, match=r"seed is .*; expected an int"):
            compare({"cavi": MODEL}, seed=seed)
        with pytest.raises(TypeError, match=r"seed is .*; expected an integer"):
            reliability(np.array([0.5]), np.array([1]), seed=seed)
