"""Predictions of bags that no memory holds, written down as they are made."""

import numpy as np
import pandas as pd
import pytest
from milzoo.datasets import simulate, simulate_instances, stream
from milzoo.inference import coordinate_ascent, posterior
from milzoo.models import DPMIL, RBF, VGPMIL, VWSGP, Gaussian

POINTS = np.array([[-1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [1.0, -1.0], [1.0, 1.0]])
MODELS = {
    "vgpmil": lambda bags: VGPMIL(RBF(3.0, 1.0), POINTS, mean=-1.5),
    "vwsgp": lambda bags: VWSGP(RBF(0.5, 1.0), POINTS),
    "gaussian": lambda bags: VWSGP(RBF(0.5, 1.0), POINTS, likelihood=Gaussian(0.5)),
    "dpmil": lambda bags: DPMIL.for_bags(bags, max_components=2),
}


@pytest.fixture(scope="module")
def design():
    """Bags of one to eleven instances."""
    return simulate_instances(40, range(1, 12), 2, seed=1)


@pytest.fixture(scope="module")
def fits(design, when_asked_for):
    """Posterior and new bags, by model."""

    def fit(name):
        of = MODELS[name]
        source = VGPMIL(RBF(3.0, 1.0), POINTS, mean=-4.0) if name == "dpmil" else of(design)
        bags = simulate(source, design, seed=2)[0]
        return coordinate_ascent(of(bags), bags, seed=0, num_draws=50, max_steps=20), bags

    return when_asked_for(fit)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("at_once", [20, 500], ids=["in pieces", "in one"])
def test_written_predictions_equal_those_of_predict(fits, tmp_path, monkeypatch, name, at_once):
    monkeypatch.setattr(posterior, "_FEWEST_AT_ONCE", at_once)
    monkeypatch.setattr(posterior, "_NUMBERS_AT_ONCE", 0)
    fit, bags = fits[name]
    bags.to_parquet(tmp_path / "in" / "bags.parquet")
    given = stream(tmp_path / "in", chunk_instances=120)
    fit.predict_to_parquet(given, tmp_path / "out.parquet", mass=0.8)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.parquet"]
    written, expected = pd.read_parquet(tmp_path / "out.parquet"), fit.predict(bags)
    assert list(written["bag"]) == [bags.names[b] for b in bags.bag_index]
    intervals = {"bag": expected.bag_interval(0.8), "instance": expected.instance_interval(0.8)}
    columns = expected.columns()
    for of, (lower, upper) in intervals.items():
        columns |= {f"{of}_lower": lower, f"{of}_upper": upper}
    assert set(written.columns) == {"bag", *columns}
    for column, values in columns.items():
        by_row = values[bags.bag_index] if column.startswith("bag") else values
        np.testing.assert_allclose(written[column], by_row, atol=2e-6, err_msg=column)


@pytest.mark.slow
def test_bags_in_memory_are_written_too(fits, tmp_path):
    """The file has intervals only on request."""
    fit, bags = fits["vgpmil"]
    fit.predict_to_parquet(bags, tmp_path / "out.parquet")
    written = pd.read_parquet(tmp_path / "out.parquet")
    assert list(written.columns) == ["bag", "bag_probability", "instance_probability"]
    assert len(written) == bags.num_instances


@pytest.mark.in_ci
def test_pieces_of_few_draws_are_bounded_too(fits, tmp_path, monkeypatch):
    """Kernels of a piece are as large as its instances are many, however few the draws."""
    fit, bags = fits["vgpmil"]
    sizes, predict = [], posterior.Posterior.predict

    def spied(self, piece, **options):
        sizes.append(piece.num_instances)
        return predict(self, piece, **options)

    monkeypatch.setattr(posterior.Posterior, "predict", spied)
    monkeypatch.setattr(posterior, "_MOST_AT_ONCE", 30)
    fit.predict_to_parquet(bags, tmp_path / "out.parquet")
    assert max(sizes) <= 30 and sum(sizes) == bags.num_instances


def test_a_bad_row_leaves_no_predictions_behind(fits, tmp_path):
    fit, bags = fits["vgpmil"]
    frame = bags.to_frame()
    frame.loc[len(frame) - 1, "x1"] = np.inf
    (tmp_path / "in").mkdir()
    frame.to_parquet(tmp_path / "in" / "bags.parquet")
    given = stream(tmp_path / "in", chunk_instances=100)
    with pytest.raises(ValueError, match=f"row {len(frame) - 1} of bags.parquet holds inf"):
        fit.predict_to_parquet(given, tmp_path / "out" / "out.parquet")
    assert not list((tmp_path / "out").iterdir())


def test_predictions_among_the_files_that_are_read_are_refused(fits, tmp_path):
    fit, bags = fits["vgpmil"]
    bags.to_parquet(tmp_path / "bags.parquet")
    for given, path in (
        (stream(tmp_path), tmp_path / "more.parquet"),
        (stream(tmp_path / "bags.parquet"), tmp_path / "bags.parquet"),
    ):
        with pytest.raises(ValueError, match="is among the files that are read"):
            fit.predict_to_parquet(given, path)


def test_predictions_of_a_stream_have_to_be_written(fits, tmp_path):
    fit, bags = fits["vgpmil"]
    bags.to_parquet(tmp_path / "bags.parquet")
    with pytest.raises(TypeError, match="write them down with predict_to_parquet"):
        fit.predict(stream(tmp_path))
