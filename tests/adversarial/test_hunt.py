"""The hunt: whatever comes in, a right answer, or a documented error with the offending name.

200 examples of each property here, 2,000 of each where tests are slow.
"""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as some
from hypothesis.extra import numpy as some_arrays
from milzoo.datasets import Bags
from milzoo.inference import Posterior, coordinate_ascent, gibbs, laplace, nuts
from milzoo.inference.serialization import FORMAT
from milzoo.models import RBF, VGPMIL, VWSGP, GammaScaleMixture, PolyaGammaScaleMixture, Probit

pytestmark = pytest.mark.in_ci


class Thing:
    """An object of a class that nobody knows."""


DOCUMENTED = (ValueError, TypeError, KeyError, IndexError)


def hunted(strategy, property_of):
    """A quick test and a slow one of a property of all that a strategy gives."""
    relaxed = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

    def quick(value):
        property_of(value)

    def at_length(value):
        property_of(value)

    kept = settings(max_examples=200, suppress_health_check=relaxed)
    longer = settings(max_examples=2000, suppress_health_check=relaxed)
    return kept(given(value=strategy)(quick)), pytest.mark.slow(
        longer(given(value=strategy)(at_length))
    )


def outcome(call, names):
    """What a call returns, or None after a documented error with one of the names."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", UserWarning)
        try:
            return call()
        except DOCUMENTED as error:
            text = str(error.args[0]) if error.args else ""
            if len(text) < 1500 and any(name in text for name in names):
                return None
            raise


# --------------------------------------------------------------------- bags by every door

numbers = some.one_of(
    some.floats(width=64), some.integers(-3, 3), some.sampled_from([0, 1, -1, np.nan, 1e300, None])
)
oddities = some.one_of(
    some.none(), some.text(max_size=3), some.booleans(), some.complex_numbers(), some.binary(),
    some.dictionaries(some.text(max_size=2), some.integers(), max_size=2), some.builds(Thing),
    some.dates(), some.timedeltas(), some.decimals(), some.sampled_from([int, np.float64, ...]),
)  # fmt: skip
rarely_odd = some.one_of(numbers, numbers, numbers, numbers, numbers, oddities)
tables = some.one_of(
    some.integers(1, 3).flatmap(
        lambda width: some.lists(
            some.lists(some.floats(-9, 9), min_size=width, max_size=width), min_size=1, max_size=4
        )
    ),
    some.lists(some.lists(rarely_odd, max_size=3), max_size=4),
    some_arrays.arrays(
        some_arrays.scalar_dtypes(), some_arrays.array_shapes(min_dims=0, max_dims=3, max_side=3)
    ),
    oddities,
)
labels = some.one_of(
    some.none(), some.lists(some.sampled_from([0, 1]), max_size=5), some.lists(rarely_odd), oddities
)
names = some.one_of(some.none(), some.lists(some.text(max_size=2), max_size=4), oddities)


def check_bags(bags: Bags) -> None:
    """What every door promises."""
    instances, index = np.asarray(bags.instances), np.asarray(bags.bag_index)
    assert instances.dtype == np.float64 and instances.ndim == 2 and instances.size
    assert np.isfinite(instances).all()
    assert index.shape == (len(instances),) and (np.diff(index) >= 0).all()
    assert set(index) == set(range(bags.num_bags)) and len(bags.names) == bags.num_bags
    assert len(set(bags.names)) == bags.num_bags
    for values, length, allowed in (
        (bags.labels, bags.num_bags, {0, 1}),
        (bags.instance_labels, len(index), {-1, 0, 1}),
    ):
        assert values is None or (len(values) == length and set(np.asarray(values)) <= allowed)
    if bags.targets is not None:
        assert np.isfinite(bags.targets).all() and len(bags.targets) == bags.num_bags


def check_list(given):
    parts, label, instance_label, name = given
    found = outcome(
        lambda: Bags.from_list(parts, label, instance_label, name),
        ("bag", "labels", "instance_labels", "names"),
    )
    if found is not None:
        check_bags(found)
        for table, expected in zip(found.to_list(), parts, strict=True):
            np.testing.assert_array_equal(table, np.asarray(expected, dtype=np.float64))


def check_arrays(given):
    table, ids, label, instance_label, name = given
    found = outcome(
        lambda: Bags.from_arrays(table, ids, label, instance_label, name),
        ("bag", "instances", "labels", "instance_labels", "names", "bag_ids"),
    )
    if found is not None:
        check_bags(found)
        assert found.num_instances == len(table)


def check_padded(given):
    padded, label, mask, instance_label = given
    found = outcome(
        lambda: Bags.from_padded(padded, label, mask, instance_label),
        ("X", "bag", "mask", "y_inst", "labels"),
    )
    if found is not None:
        check_bags(found)


columns = some.one_of(
    some.lists(some.floats(-9, 9), min_size=3, max_size=3),
    some.lists(some.sampled_from([0, 1]), min_size=3, max_size=3),
    some.lists(some.booleans(), min_size=3, max_size=3),
    some.lists(rarely_odd, min_size=3, max_size=3),
)
frames = some.dictionaries(
    some.sampled_from(["bag", "bag_label", "instance_label", "bag_target", "x0", "x1", "y", ""]),
    columns, max_size=6,
)  # fmt: skip


def check_frame(given):
    content, options = given
    try:
        frame = pd.DataFrame(content)
    except Exception:  # no frame that pandas makes
        assume(False)
    found = outcome(
        lambda: Bags.from_frame(frame, **options),
        ("frame", "column", "features", "bag", "labels", "targets", "instances"),
    )
    if found is not None:
        check_bags(found)
        label = None if found.labels is None else "bag_label"
        again = outcome(lambda: Bags.from_frame(found.to_frame(), bag_label=label), ())
        np.testing.assert_array_equal(again.instances, found.instances)


roles = some.sampled_from([None, "bag", "bag_label", "x0", "y", "absent"])
options = some.fixed_dictionaries(
    {},
    optional={
        "bag_label": roles,
        "instance_label": roles,
        "bag_target": roles,
        "features": some.one_of(
            some.none(), some.lists(some.sampled_from(["x0", "x1", "y", "bag"]), max_size=3)
        ),
    },
)
ids = some.one_of(some.lists(some.integers(0, 2), max_size=4), some.lists(rarely_odd), oddities)

test_lists_of_bags, test_lists_of_bags_at_length = hunted(
    some.tuples(some.one_of(some.lists(tables, max_size=3), tables), labels, names, names),
    check_list,
)
test_arrays_of_bags, test_arrays_of_bags_at_length = hunted(
    some.tuples(tables, ids, labels, labels, names), check_arrays
)
test_padded_bags, test_padded_bags_at_length = hunted(
    some.tuples(some.one_of(some.lists(tables, max_size=3), tables), labels, tables, tables),
    check_padded,
)
test_frames_of_bags, test_frames_of_bags_at_length = hunted(
    some.tuples(frames, options), check_frame
)


# -------------------------------------------------------------------- models and engines

BAGS = Bags.from_list(list(np.random.default_rng(0).normal(size=(6, 2, 2))), [0, 1] * 3)
anything = some.one_of(
    some.floats(), some.integers(), oddities, some.lists(some.floats(), max_size=2),
    some.sampled_from([1.0, 0.5, 100.0, 1e-3, 1e6, 1e-300, 1e300, 0.0, -1.0]),
)  # fmt: skip
fields_of = {
    "variance": lambda value: VGPMIL(RBF(value, 1.0), np.eye(2), mean=-1.0),
    "length_scale": lambda value: VGPMIL(RBF(1.0, value), np.eye(2), mean=-1.0),
    "mean": lambda value: VGPMIL(RBF(1.0, 1.0), np.eye(2), mean=value),
    "sharpness": lambda value: VGPMIL(RBF(1.0, 1.0), np.eye(2), sharpness=value),
    "jitter": lambda value: VWSGP(RBF(1.0, 1.0), np.eye(2), jitter=value),
    "noise": lambda value: VWSGP(RBF(1.0, 1.0), np.eye(2), likelihood=Probit(value)),
    "alpha": lambda value: VGPMIL(
        RBF(1.0, 1.0), np.eye(2), scale_mixture=GammaScaleMixture(value, 1.0)
    ),
    "inducing_points": lambda value: VGPMIL(RBF(1.0, 1.0), [[value, 0.0], [0.0, 1.0]], mean=-1.0),
    "scale_mixture": lambda value: VGPMIL(RBF(1.0, 1.0), np.eye(2), scale_mixture=value),
    "kernel": lambda value: VWSGP(value, np.eye(2)),
}


def check_field(given):
    """A model with this field is fitted and predicts, or the field is refused by name."""
    name, value = given
    model = outcome(lambda: fields_of[name](value), (name,))
    if model is None:
        return
    fitted = coordinate_ascent(model, BAGS, seed=0, max_steps=3, num_draws=5)
    assert fitted.status.kind in ("converged", "max_steps", "failed", "collapsed")
    predicted = outcome(lambda: fitted.predict(BAGS), ("the prediction of bag",))
    if predicted is not None:
        assert ((predicted.bag_probability >= 0) & (predicted.bag_probability <= 1)).all()


MODEL = VGPMIL(RBF(1.0, 1.0), np.eye(2), mean=-1.0, scale_mixture=PolyaGammaScaleMixture())
ENGINE_OPTIONS = {
    coordinate_ascent: ("max_steps", "tolerance", "num_draws", "dtype", "label_update", "progress"),
    laplace: ("max_steps", "num_draws", "progress"),
    nuts: ("num_warmup", "num_samples", "num_chains", "target_accept", "program", "mass_matrix"),
    gibbs: ("num_warmup", "num_samples", "num_chains", "thin", "keep"),
}
BRIEF = {
    coordinate_ascent: {"max_steps": 2, "num_draws": 5},
    laplace: {"num_draws": 5},
    nuts: {"num_warmup": 2, "num_samples": 2, "num_chains": 1},
    gibbs: {"num_warmup": 2, "num_samples": 2, "num_chains": 1},
}
# Large counts are right, and would take their time; other small ones would compile anew.
no_counts = anything.filter(
    lambda value: not (isinstance(value, int | float) and not isinstance(value, bool) and value > 2)
)


def check_option(given):
    """An option is taken, or refused by name, before anything is computed."""
    (engine, name), value = given
    found = outcome(lambda: engine(MODEL, BAGS, seed=0, **(BRIEF[engine] | {name: value})), (name,))
    if found is not None:
        assert np.isfinite(found.stored_draws()["inducing_value"]).all()


test_fields_of_models, test_fields_of_models_at_length = hunted(
    some.tuples(some.sampled_from(sorted(fields_of)), anything), check_field
)
test_options_of_engines, test_options_of_engines_at_length = hunted(
    some.tuples(
        some.sampled_from([(engine, name) for engine, of in ENGINE_OPTIONS.items() for name in of]),
        no_counts,
    ),
    check_option,
)


# --------------------------------------------------------------------------------- files

WHOLE = (Path(__file__).parent / "formats" / f"format_{FORMAT}.nc").read_bytes()
places = some.integers(0, len(WHOLE))
edits = some.lists(
    some.one_of(
        some.tuples(some.just("flip"), places, some.integers(0, 7)),
        some.tuples(some.just("cut"), places, some.integers(1, 4096)),
        some.tuples(some.just("insert"), places, some.binary(min_size=1, max_size=64)),
        some.tuples(some.just("truncate"), places, some.none()),
        some.tuples(some.just("repeat"), places, some.integers(1, 4096)),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def edited(content: bytes, what: str, place: int, how) -> bytes:
    match what:
        case "flip":
            return (
                content[:place]
                + bytes(b ^ (1 << how) for b in content[place : place + 1])
                + (content[place + 1 :])
            )
        case "cut":
            return content[:place] + content[place + how :]
        case "insert":
            return content[:place] + how + content[place:]
        case "truncate":
            return content[:place]
    return content[:place] + content[place : place + how] + content[place:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hunt")


def _check_file(edits, file: Path) -> None:
    """A file that is edited anyhow is refused by its name, unless it is as it was."""
    content = WHOLE
    for edit in edits:
        content = edited(content, *edit)
    file.write_bytes(content)
    if content == WHOLE:
        Posterior.load(file)
    else:
        with pytest.raises(ValueError, match=f"{file.name} holds no posterior that can be read"):
            Posterior.load(file)


@given(edits)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_edited_files(folder, edits):
    _check_file(edits, folder / "x.nc")


@pytest.mark.slow
@given(edits)
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
def test_edited_files_at_length(folder, edits):
    _check_file(edits, folder / "x.nc")
