"""An approximation resampled by weights, against NUTS; and one that no weights correct."""

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics import compare, importance_resample
from milzoo.inference import (
    Posterior,
    coordinate_ascent,
    laplace,
    maximum_a_posteriori,
)
from milzoo.models import CardinalityModel


@pytest.fixture(scope="module")
def approximation(problem):
    training, _, model = problem
    return laplace(model, training, seed=0)


@pytest.fixture(scope="module")
def resampled(approximation):
    return importance_resample(approximation, seed=1, num_draws=2000)


@pytest.mark.slow
def test_resampled_approximation_agrees_with_nuts_better(
    approximation, resampled, posteriors, problem
):
    found = compare(
        {"NUTS": posteriors["nuts"], "Laplace": approximation, "resampled": resampled},
        reference="NUTS",
        test=problem[1],
    )
    table = found.table
    assert table.loc["Laplace", "khat"] < 0.7
    assert table.loc["resampled", "mean_error"] < 0.5 * table.loc["Laplace", "mean_error"]
    # Eight means and sds of 2,000 draws each side.
    assert table.loc["resampled", "mean_error"] < 4 * table.loc["resampled", "error_mcse"]
    assert table.loc["resampled", "probability_difference"] < 0.01
    # k̂ has judged the proposals; of what came of them there is none, and nothing to complain of.
    assert np.isnan(table.loc["resampled", "khat"]) and "k̂" not in found.sentences["resampled"]
    (shown,) = found.plot_khat().axes
    assert [label.get_text() for label in shown.get_yticklabels()] == ["Laplace"]


@pytest.mark.slow
def test_status_has_the_effective_size_of_proposals(resampled):
    assert resampled.engine == "importance_resample(laplace)"
    assert resampled.status.kind == "converged"
    assert resampled.status.sentence.startswith("PSIS k̂ 0.")
    assert "20,000 proposals have an effective size of" in resampled.status.sentence


@pytest.mark.slow
def test_approximation_beyond_weighting_fails(problem):
    training, _, model = problem
    narrow = coordinate_ascent(model, training, seed=0, label_update="mean_field")
    beyond = importance_resample(narrow, seed=0)
    assert beyond.status.kind == "failed"
    assert "no number of proposals corrects this approximation" in beyond.status.sentence
    assert compare({"beyond": beyond}).table.loc["beyond", "status"] == "failed"


@pytest.mark.slow
def test_draws_survive_saving_and_are_reproducible(resampled, tmp_path):
    resampled.save(tmp_path / "resampled.nc")
    back = Posterior.load(tmp_path / "resampled.nc")
    kept, again = resampled.draws(50, seed=3), back.draws(50, seed=3)
    np.testing.assert_array_equal(kept["inducing_value"], again["inducing_value"])
    assert back.status == resampled.status
    assert back.log_density(kept) is None


@pytest.mark.slow
def test_posterior_without_a_density_is_refused(posteriors, resampled):
    with pytest.raises(ValueError, match="posterior of nuts has no density to weigh its draws by"):
        importance_resample(posteriors["nuts"], seed=0)
    with pytest.raises(ValueError, match=r"importance_resample\(laplace\) has no density"):
        importance_resample(resampled, seed=0)
    with pytest.raises(ValueError, match="num_proposals is 20; expected at least 1,000"):
        importance_resample(resampled, seed=0, num_proposals=20)
    with pytest.raises(ValueError, match="take that of the posterior that was resampled"):
        _ = resampled.guide


@pytest.mark.slow
def test_a_point_is_refused():
    bags = Bags.from_list([np.ones((2, 1)), -np.ones((2, 1))], [1, 0])
    point = maximum_a_posteriori(CardinalityModel(), bags, seed=0)
    with pytest.raises(ValueError, match="posterior of maximum_a_posteriori has no density"):
        importance_resample(point, seed=0)


@pytest.mark.slow
def test_few_proposals_have_larger_errors_than_many(approximation, posteriors):
    few, many = (
        importance_resample(approximation, seed=1, num_proposals=n) for n in (1000, 20_000)
    )
    found = compare({"NUTS": posteriors["nuts"], "few": few, "many": many}, reference="NUTS")
    error = found.table["error_mcse"]
    # Resampled from 1,000 proposals at most, whatever the number of draws.
    assert error["few"] > 1000**-0.5 > 4000**-0.5
    assert error["few"] > 1.3 * error["many"]
