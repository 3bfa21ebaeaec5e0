"""Numbers that are very large or very small: a right answer, or a refusal that names them."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent, laplace
from milzoo.models import (
    BMIL,
    DPMIL,
    GPMIL,
    VGPMIL,
    VWSGP,
    CardinalityModel,
    DiverseDensity,
    GammaScaleMixture,
    NegativeBinomial,
)

DRAWN = np.random.default_rng(0).normal(size=(24, 2))
MODELS = (VGPMIL, VWSGP, DPMIL, CardinalityModel, DiverseDensity, BMIL, GPMIL)


def bags_of(instances: np.ndarray) -> Bags:
    """Eight bags of three."""
    return Bags.from_list(np.split(instances, 8), [0, 1] * 4)


def expected_standardized(instances: np.ndarray) -> np.ndarray:
    return (instances - instances.mean(axis=0)) / instances.std(axis=0)


# ------------------------------------------------------------------ standardised features


@pytest.mark.parametrize("scale", [1e300, 1e155, 1.0, 1e-155, 1e-300])
def test_features_of_any_scale_are_standardized_rightly(scale):
    found = bags_of(DRAWN * scale).standardize().instances
    np.testing.assert_allclose(found, expected_standardized(DRAWN), rtol=1e-12, atol=1e-14)


def test_features_of_different_scales_are_standardized_rightly():
    found = bags_of(DRAWN * [1e300, 1e-300]).standardize().instances
    np.testing.assert_allclose(found, expected_standardized(DRAWN), rtol=1e-12, atol=1e-14)


def test_subnormal_features_keep_the_digits_that_they_have():
    given = DRAWN * 1e-320
    found = bags_of(given).standardize().instances
    np.testing.assert_allclose(found, expected_standardized(np.ldexp(given, 1060)), rtol=1e-12)


def test_constant_columns_are_centred_at_any_scale():
    constant = bags_of(np.full((24, 1), 1e300))
    assert (np.asarray(constant.standardize().instances) == 0).all()
    other = Bags.from_list([[[2e300]]])
    np.testing.assert_array_equal(other.standardize(constant).instances, [[1e300]])


def test_what_stays_infinite_is_refused():
    far = Bags.from_list([[[0.0, 1.0], [0.0, 1e300]]], names=["far"])
    with pytest.raises(ValueError, match=r"bag 'far', row 1 has 1e\+300 in feature 1, .* of one"):
        far.standardize(bags_of(DRAWN * [1.0, 1e-300]))


@settings(max_examples=200)
@given(some.lists(some.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=9))
def test_standardized_features_are_numbers(values):
    """Of any column: mean 0 and sd 1 up to the rounding of its values, or 0 throughout."""
    column = np.array(values)[:, None]
    found = np.asarray(Bags.from_list([column]).standardize().instances)
    assert np.isfinite(found).all()
    if len(set(values)) > 1:
        in_units = np.ldexp(column, -np.frexp(np.abs(column).max())[1])
        rounding = 1e-14 / in_units.std()
        assert abs(found.mean()) < rounding
        assert abs(found.std() - 1) < rounding
    else:
        assert (found == 0).all()


# ---------------------------------------------------------------- features as they come


@pytest.mark.parametrize("scale", [1e300, 1e160, 1e-160, 1e-320])
@pytest.mark.parametrize("model", MODELS)
def test_features_whose_squares_are_no_numbers_are_refused(model, scale):
    with pytest.raises(ValueError, match=r"instances reach .*; expected .*: bags\.standardize"):
        model.for_bags(bags_of(DRAWN * scale), seed=0)


@pytest.fixture(scope="module")
def fits():
    bags = bags_of(DRAWN)
    given = {VGPMIL: {"num_inducing": 2}, VWSGP: {"num_inducing": 2}, DPMIL: {"max_components": 2}}
    return {
        model: coordinate_ascent(model.for_bags(bags, seed=0, **options), bags, seed=0)
        for model, options in given.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", [VGPMIL, VWSGP, DPMIL])
def test_a_prediction_is_a_number_or_refused(fits, model, tmp_path):
    refusals = 0
    for scale in (1e-320, 1e-100, 1.0, 1e10, 1e100, 1e160, 1e200, 1e308):
        far = Bags.from_list([DRAWN[:3] / 3 * scale], names=["far"])
        try:
            found = fits[model].predict(far)
        except ValueError as error:
            assert "the prediction of bag 'far' by coordinate_ascent is no" in str(error)  # noqa: PT017
            with pytest.raises(ValueError, match="bag 'far'"):
                fits[model].predict_to_parquet(far, tmp_path / "x.parquet")
            refusals += 1
        else:
            for probability in (found.bag_probability, found.instance_probability):
                assert ((probability >= 0) & (probability <= 1)).all()
    assert refusals <= 3  # the three whose squares overflow


# ------------------------------------------------------------------------ large variances


@pytest.mark.slow
@pytest.mark.parametrize("model", [VGPMIL, VWSGP])
@pytest.mark.parametrize("variance", [1e12, 1e6, 1e4])
def test_a_large_variance_takes_no_more_time(model, variance):
    """It took 145 s at 1e6, and memory for which there is no machine at 1e12."""
    bags, begin = bags_of(DRAWN), time.perf_counter()
    posterior = laplace(
        model.for_bags(bags, num_inducing=5, variance=variance, seed=0), bags, seed=0
    )
    found = posterior.predict(bags).bag_probability
    assert posterior.status.kind == "converged"
    assert time.perf_counter() - begin < 60
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.abs(found - bags.labels) < 0.5).mean() > 0.7


@pytest.mark.parametrize(
    "others",
    [
        {"scale_mixture": GammaScaleMixture(1.0, 1.0), "mean": 0.0},
        {"likelihood": NegativeBinomial(1)},
    ],
    ids=["gamma", "negative_binomial"],
)
def test_a_variance_without_a_quadrature_is_refused(others):
    bags = bags_of(DRAWN).with_targets(np.arange(8.0))
    model = VGPMIL if "scale_mixture" in others else VWSGP
    with pytest.raises(
        ValueError, match=r"the variance of latent function values is up to .* give"
    ):
        laplace(model.for_bags(bags, 5, variance=1e9, seed=0, **others), bags, seed=0)
