"""What memory cannot hold is made in pieces, or refused before the work."""

import importlib

import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import coordinate_ascent, nuts
from milzoo.models import RBF, VGPMIL
from milzoo.models.numerics import memory

ascent_module = importlib.import_module("milzoo.inference.closed_form.coordinate_ascent")


@pytest.fixture(scope="module")
def problem():
    design = simulate_instances(20, range(1, 6), num_features=2, seed=1)
    model = VGPMIL(RBF(2.0, 1.0), np.random.default_rng(0).normal(size=(4, 2)), mean=-0.9)
    return model, simulate(model, design, seed=2)[0]


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 100)


@pytest.mark.in_ci
def test_large_bags_are_fitted_in_pieces_alike(problem, monkeypatch):
    model, bags = problem
    at_once = coordinate_ascent(model, bags, seed=0)
    monkeypatch.setattr(ascent_module, "_NUMBERS_KEPT_OF_BAGS", 10)
    monkeypatch.setattr(ascent_module, "ascend_in_memory", None)
    in_pieces = coordinate_ascent(model, bags, seed=0)
    assert type(in_pieces.approximation) is type(at_once.approximation)
    np.testing.assert_allclose(in_pieces.elbo[-1], at_once.elbo[-1], rtol=1e-7)
    np.testing.assert_allclose(
        in_pieces.approximation.mean, at_once.approximation.mean, rtol=1e-3, atol=1e-4
    )
    assert in_pieces.keeps_bags and in_pieces.bags.names == bags.names
    assert in_pieces.predict(bags).bag_probability.shape == (20,)


@pytest.mark.in_ci
def test_labels_with_factors_of_their_own_need_the_memory(problem, monkeypatch, no_memory):
    model, bags = problem
    monkeypatch.setattr(ascent_module, "_NUMBERS_KEPT_OF_BAGS", 10)
    for options in ({"label_update": "mean_field"}, {"learn_hyperparameters": True}):
        with pytest.raises(MemoryError, match=r"keeps of .* instances would take .* leave out"):
            coordinate_ascent(model, bags, seed=0, **options)


def test_a_kernel_that_does_not_fit_is_refused_first(problem, no_memory):
    with pytest.raises(MemoryError, match=r"kernel between .* 4 inducing points would take 0\.0"):
        nuts(*problem, seed=0)


def test_predictions_that_do_not_fit_name_the_way_out(problem, monkeypatch, tmp_path):
    model, bags = problem
    posterior = coordinate_ascent(model, bags, seed=0)
    monkeypatch.setattr(memory, "available_memory", lambda: 100_000)
    with pytest.raises(MemoryError, match=r"by 1,000 draws would .* predict_to_parquet\(bags"):
        posterior.predict(bags)


def test_available_memory_is_a_plausible_number():
    assert 2**26 < memory.available_memory() < 2**50
