"""A comparison as a self-contained page and as files that programs read."""

from __future__ import annotations

import base64
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure

from ..datasets.writing import written_together
from ..models.parts.components import ComponentModel
from . import conclusions
from .checks.criticism import MUCH_SENSITIVITY
from .compared import Compared
from .measures.columns import MEASURES, formatted
from .measures.target_densities import in_words
from .plots import figures
from .plots.clusters import plot_components, plot_scene

__all__ = ["metrics", "write_report"]

_PAGE = "report.html"

_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 60rem;
       padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 0; }
.verdicts { list-style: none; padding: 0; }
.verdicts li { border-left: 0.4rem solid #888; margin: 0.5rem 0; padding: 0.2rem 0.7rem; }
.verdicts strong { padding: 0 0.4rem; }
.verdicts .reliable { border-color: #009e73; }
.verdicts .overconfident, .verdicts .wrong-place, .verdicts .failed { border-color: #d55e00; }
.verdicts .underconfident { border-color: #e69f00; }
nav ol { columns: 16rem auto; padding-left: 1.4rem; } a { color: #0072b2; }
img { max-width: 100%; height: auto; display: block; margin: 1rem 0 0.3rem; }
figcaption, .note { color: #555; font-size: 0.9rem; } figure { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
thead th { border-bottom: 2px solid #222; } tbody th { font-weight: normal; }
tbody tr + tr > * { border-top: 1px solid #eee; }
"""


@dataclass(frozen=True)
class _Picture:
    """A figure under the conclusion that is to be drawn from it."""

    file: str
    conclusion: str
    caption: str
    figure: Figure

    @cached_property
    def png(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png")
        return buffer.getvalue()


@dataclass(frozen=True)
class _Section:
    """A question of the reader: the table, the pictures and the findings that answer it."""

    title: str
    text: str
    table: pd.DataFrame
    pictures: list[_Picture]
    findings: tuple[str, ...] = ()


def metrics(comparison: Compared) -> dict[str, Any]:
    """Table and sentences as JSON's types; None where a measure does not apply, infinity a string.

    k̂ is ``"-inf"`` where an approximation is exact.
    """
    rows = comparison.table.to_dict(orient="index")
    return {
        "reference": comparison.reference,
        "reference_sentence": comparison.reference_sentence,
        "engines": {
            str(name): {str(column): _plain(value) for column, value in row.items()}
            for name, row in rows.items()
        },
        "divergences": {
            str(name): {str(column): _plain(value) for column, value in row.items()}
            for name, row in comparison.divergence_table.to_dict(orient="index").items()
        },
        "joint": {
            str(name): {str(column): _plain(value) for column, value in row.items()}
            for name, row in comparison.joint_table.to_dict(orient="index").items()
        },
        "headlines": {
            name: {"word": one.word, "reason": one.reason}
            for name, one in comparison.headlines.items()
        },
        "sentences": comparison.sentences,
        "joint_sentences": comparison.joint_sentences,
        "attribution": comparison.attribution,
    }


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value or None
    number = float(value)  # type: ignore[arg-type]
    if math.isinf(number):  # is a result, though JSON has no number for it
        return str(number)
    return None if math.isnan(number) else number


def write_report(
    comparison: Compared,
    folder: Path,
    origin: str,
    *,
    image_shape: tuple[int, int] | None = None,
    images: Float[np.ndarray, "N P"] | None = None,
    force: bool = False,
) -> Path:
    """Write all files of a report, together.

    Parameters
    ----------
    comparison : Comparison
    folder : Path
    origin : str
        What made it.
    image_shape, images
        Of the test instances, if they are images.
    force : bool
        Whether files that no report wrote may be overwritten.

    Returns
    -------
    Path
        Of ``report.html``.

    Raises
    ------
    OSError
        If the folder cannot be made or written, or has files of others.
    ValueError
        If two posteriors would be saved in one file, or images have another number of pixels.
    """
    _check_file_stems(list(comparison.posteriors))
    with written_together(folder, force=force) as unfinished:
        made_by = f"{origin} {_versions()}".strip()
        content = {"made_by": made_by, **metrics(comparison)}
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        (unfinished / "metrics.json").write_text(text, encoding="utf-8")
        sections = _sections(comparison, partial(_bag, comparison, image_shape, images))
        for picture in (p for section in sections for p in section.pictures):
            (unfinished / picture.file).write_bytes(picture.png)
        notes = [
            *_notes_on_scores(comparison),
            *_save_posteriors(comparison, unfinished),
            f"Made by: {made_by}",
        ]
        page = _page(comparison, sections, notes)
        (unfinished / _PAGE).write_text(page, encoding="utf-8")
    return folder / _PAGE


def _versions() -> str:
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("milzoo", "jax", "numpyro", "arviz")
    )
    return f"{versions}; {os.cpu_count()} cores."


def _notes_on_scores(comparison: Compared) -> Iterator[str]:
    """The model's note on its instance probabilities, where these are scored."""
    note = next(iter(comparison.posteriors.values())).model.instance_note
    scores = (verdict.scores for verdict in comparison.verdicts.values())
    if note and any(one is not None and not math.isnan(one.instance_auc) for one in scores):
        yield f"Instance scores: {note}."


def _save_posteriors(comparison: Compared, folder: Path) -> Iterator[str]:
    """Save each posterior to a NetCDF file; yield a note for each that cannot be saved."""
    for name, posterior in comparison.posteriors.items():
        try:
            posterior.save(folder / f"{_file_stem(name)}.nc")
        except ValueError as error:
            yield f"{name} is not among the files: {error}."


def _check_file_stems(names: list[str]) -> None:
    """Refuse names that differ only in what a file name leaves out, or in their capitals."""
    owner: dict[str, str] = {}
    for name in names:
        stem = _file_stem(name).casefold()
        if stem in owner:
            raise ValueError(
                f"posteriors {owner[stem]!r} and {name!r} would be saved in one file, {stem}.nc; "
                "give one of them another name"
            )
        owner[stem] = name


def _file_stem(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


# ---------------------------------------------------------------- what is on the page


def _sections(comparison: Compared, bag: Callable[[], _Picture]) -> list[_Section]:
    """Sections in the order of a reader's questions: fits, convergence, errors, predictions."""
    groups = list(dict.fromkeys(measure.group for measure in MEASURES))
    what, worked, how_far, matters = groups
    has_bound = any(p.elbo is not None and len(p.elbo) for p in comparison.posteriors.values())
    assessments = {name: verdict.assessment for name, verdict in comparison.verdicts.items()}
    samplers = [name for name, one in assessments.items() if one.is_sampler and not one.failed]
    sections = [
        _Section(what, _model_text(comparison), _measured(comparison, what), []),
        _Section(worked, comparison.reference_sentence, _measured(comparison, worked), []),
        _Section(how_far, _how_far(comparison), _measured(comparison, how_far), []),
        _Section(
            matters,
            _test_text(comparison),
            _measured(comparison, matters),
            [],
            tuple(comparison.attribution),
        ),
        _Section(
            "Which model is better?", _MODEL, _held_out(comparison), [], _of_the_model(comparison)
        ),
    ]
    if has_bound:
        sections[0].pictures.append(
            _Picture(
                "elbo.png",
                conclusions.of_bound(comparison),
                "The bound by recorded step.",
                figures.elbo(comparison),
            )
        )
    for name in samplers:
        sections[1].pictures.extend(_chain_pictures(comparison, name))
    if not all(one.failed for one in assessments.values()):
        conclusion = conclusions.of_errors(comparison)
        sections[2].pictures.append(
            _Picture("forest.png", conclusion, _FOREST, figures.forest(comparison))
        )
    if any(not (one.failed or one.is_point) for one in assessments.values()):
        conclusion = conclusions.of_widths(comparison)
        sections[2].pictures.append(
            _Picture("marginals.png", conclusion, _MARGINALS, figures.marginals(comparison))
        )
    if any(one.has_density for one in assessments.values()):
        conclusion = conclusions.of_khat(comparison)
        sections[2].pictures.append(
            _Picture("khat.png", conclusion, _KHAT, figures.khat(comparison))
        )
    sections[2].pictures.extend(_cluster_pictures(comparison))
    sections[3].pictures.extend(_test_pictures(comparison))
    if comparison.predictions:
        sections[3].pictures.append(bag())
    sections[4].pictures.extend(_model_pictures(comparison))
    if comparison.divergences:
        sections.insert(3, _Section("How many nats?", _NATS, _in_nats(comparison), []))
    if comparison.joint:
        found = tuple(comparison.joint_sentences)
        told = _Section("Can draws be told apart?", _JOINT, _of_all_sites(comparison), [], found)
        sections.insert(3, told)
    return sections


def _chain_pictures(comparison: Compared, name: str) -> Iterator[_Picture]:
    """Pictures of a sampler's chains."""
    stem, conclusion = _file_stem(name), conclusions.of_chains(comparison, name)
    yield _Picture(f"trace_{stem}.png", conclusion, _TRACE, figures.trace(comparison, name))
    yield _Picture(f"rank_{stem}.png", conclusion, _RANK, figures.rank(comparison, name))


def _cluster_pictures(comparison: Compared) -> Iterator[_Picture]:
    """Pictures of clusters, of mixture models whose fits did not fail."""
    posteriors = {
        name: verdict.assessment.posterior
        for name, verdict in comparison.verdicts.items()
        if isinstance(verdict.assessment.posterior.model, ComponentModel)
        and not verdict.assessment.failed
    }
    if posteriors:
        title = "Clusters by weight"
        yield _Picture("components.png", title, _COMPONENTS, plot_components(posteriors))
        if next(iter(posteriors.values())).bags.num_features == 2:
            yield _Picture("scene.png", "Clusters among the bags", _SCENE, plot_scene(posteriors))


def _test_pictures(comparison: Compared) -> Iterator[_Picture]:
    """Pictures of predictions of the test bags."""
    if len(comparison.predictions) > 1:
        conclusion = conclusions.of_predictions(comparison)
        figure = figures.probabilities(comparison)
        yield _Picture("probabilities.png", conclusion, _PROBABILITIES, figure)
    if comparison.target_predictions:
        conclusion = conclusions.of_predictions(comparison)
        yield _Picture("targets.png", conclusion, _TARGETS, figures.targets(comparison))
    if comparison.predictions:
        conclusion = conclusions.of_calibration(comparison)
        figure = figures.calibration(comparison)
        yield _Picture("calibration.png", conclusion, _CALIBRATION, figure)
        scores = (verdict.scores for verdict in comparison.verdicts.values())
        if any(one and not math.isnan(one.instance_calibration_error) for one in scores):
            yield _Picture(
                "instance_calibration.png",
                conclusions.of_calibration(comparison, "instance_"),
                _INSTANCE_CALIBRATION,
                figures.calibration(comparison, "instances"),
            )


def _bag(
    comparison: Compared,
    image_shape: tuple[int, int] | None,
    images: Float[np.ndarray, "N P"] | None,
) -> _Picture:
    figure = figures.bag(comparison, image_shape=image_shape, images=images)
    return _Picture("bag.png", conclusions.of_bag(comparison), _BAG, figure)


def _model_pictures(comparison: Compared) -> Iterator[_Picture]:
    """Pictures that judge the model, not an engine."""
    if comparison.leave_one_out:
        conclusion = conclusions.of_leave_one_out(comparison)
        figure = figures.leave_one_out(comparison)
        yield _Picture("leave_one_out.png", conclusion, _HELD_OUT, figure)
    prior = comparison.prior_predictive
    if prior is not None and len(prior.sizes) > 1:  # of one size the next picture says as much
        conclusion = conclusions.of_prior(prior)
        yield _Picture("prior_predictive.png", conclusion, _PRIOR, prior.plot())
    if comparison.check is not None:
        conclusion = conclusions.of_check(comparison.check)
        yield _Picture("predictive_check.png", conclusion, _CHECK, comparison.check.plot())


_HOW_FAR = (
    "Errors are (mean − reference mean) in the reference's posterior standard deviations, over "
    "all {sites}; their Monte-Carlo error stands beside them. k̂ is that of the ratios of the exact "
    "marginal posterior to the approximation, at draws from the approximation."
)
_NATS = (
    "Log evidence, and how far each approximation is from the posterior: KL(q‖p) on the exact "
    "marginal, and the gap between log evidence and ELBO. The augmentation and its factorisation "
    "lose the rest of the gap."
)
_JOINT = (
    "Tests of all sites at once. A classifier learns to tell draws of a posterior from the "
    "reference's, and is judged on draws that were held out; where both densities are known it is "
    "the best there is, and its accuracy ½ + ½ of the total variation distance. The kernel Stein "
    "discrepancy needs no reference: it holds draws against the gradient of the model's density."
)
_TRACE = "Traces without drift or chains apart are what a sampler that works shows."
_RANK = (
    "Ranks of each chain among all draws: their distribution function less the uniform one. Dots "
    "mark draws by which chains differ: none in 999 of 1,000 cases where chains agree."
)
_FOREST = "The sites on which some posterior differs most from the reference."
_KHAT = (
    "k̂ and two standard errors. It sees only where the approximation has draws; a mode it never "
    "visits goes unnoticed."
)
_COMPONENTS = (
    "Weights of the clusters in their class. The q of coordinate ascent tells clusters by name; of "
    "other posteriors the weights of each draw are sorted, as their clusters have no names."
)
_SCENE = (
    "The bags learned from. Clusters with an instance or more in them, lines the wider the larger "
    "the weight: expected ones under the q of coordinate ascent, else those of a typical draw."
)
_PROBABILITIES = "Each test bag once; 90 % intervals of the engine in the title."
_TARGETS = (
    "Each test bag once, its 90 % predictive interval by the engine in the title; of good "
    "intervals nine in ten hold the truth."
)
_CALIBRATION = (
    "Isotonic regression of the test labels on the predictions. Calibrated ones are in the band "
    "with probability 90 % at each point, so somewhere along it they may well leave it."
)

_MARGINALS = "Each site by itself: posteriors that agree here may differ in how sites go along."
_INSTANCE_CALIBRATION = (
    "The same of the test instances whose label is known. Those of one bag are not independent, so "
    "that the band is too narrow."
)
_BAG = (
    "A positive test bag: of those that are small enough to draw the one whose instances the "
    "posteriors see most differently; 90 % intervals."
)
_MODEL = (
    "Leave-one-out log probabilities of the labels (targets), summed over bags: of the model, as "
    "far as each engine's draws can tell."
)
_HELD_OUT = (
    "How much the posterior without a bag differs from the one with it: a bag with a high k̂ is "
    "influential."
)
_PRIOR = (
    "Labels (targets) that the prior expects of bags of each size, before any is seen, and those "
    "observed."
)
_CHECK = (
    "Replicated labels of the data's bags, from the model and from its posterior: a model that is "
    "right makes data like those observed."
)


def _of_the_model(comparison: Compared) -> tuple[str, ...]:
    """Findings on the model: prior, leave-one-out, replicated labels, sensitivity to the prior."""
    prior = comparison.prior_predictive
    expected = () if prior is None else prior.sentences
    return (
        *expected,
        *comparison.loo_sentences,
        *_replicated(comparison),
        *_sensitive(comparison),
    )


def _replicated(comparison: Compared) -> Iterator[str]:
    if comparison.check is None:
        return
    for found in comparison.check.sentences:
        yield f"{found[0].upper()}{found[1:]}."
    if not comparison.check.sentences:
        yield "Replicated labels (targets) under the posterior look like those observed."


def _sensitive(comparison: Compared) -> Iterator[str]:
    """How many unknown numbers are sensitive to the prior."""
    if comparison.sensitivity is None:
        return
    is_sensitive = comparison.sensitivity["prior"].to_numpy(dtype=float) > MUCH_SENSITIVITY
    yield (
        f"Of {len(is_sensitive)} unknown numbers {is_sensitive.sum()} would move noticeably if the "
        "prior counted a little more or less (power scaling)."
    )


def _held_out(comparison: Compared) -> pd.DataFrame:
    """The table of leave-one-out, formatted for readers."""
    table = comparison.loo
    labels = {
        "elpd": ("log p(held-out bags)", ",.2f"),
        "se": ("its standard error", ",.2f"),
        "elpd_diff": ("behind the best", ",.2f"),
        "dse": ("standard error of that", ",.2f"),
        "p": ("effective parameters", ",.1f"),
        "bad_bags": ("bags that weights cannot leave out", ",.0f"),
        "worst_khat": ("worst k̂", ".2f"),
    }
    return _formatted(table, labels)


def _in_nats(comparison: Compared) -> pd.DataFrame:
    """The table of divergences, formatted for readers."""
    table = comparison.divergence_table
    labels = {
        "log_evidence": ("log evidence", ",.2f"),
        "log_evidence_error": ("its Monte-Carlo error", ",.2f"),
        "gap": ("log evidence − ELBO", ",.1f"),
        "kl": ("KL(q‖p)", ",.2f"),
        "kl_error": ("its Monte-Carlo error", ",.2f"),
        "lost": ("lost by the augmentation", ",.1f"),
    }
    return _formatted(table, labels)


def _of_all_sites(comparison: Compared) -> pd.DataFrame:
    """The table of joint tests, formatted for readers."""
    labels = {
        "classifier_accuracy": ("accuracy of a classifier", ".3f"),
        "classifier_error": ("its sd by chance", ".3f"),
        "classifier_p": ("its p-value", ".3f"),
        "stein": ("kernel Stein discrepancy", ".2g"),
        "stein_error": ("its sd by chance", ".1g"),
        "stein_p": ("its p-value", ".3f"),
    }
    return _formatted(comparison.joint_table, labels)


def _formatted(table: pd.DataFrame, labels: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Columns as rows with a label and a format each; a dash where there is no number."""
    rows = [
        ["–" if math.isnan(value) else format(value, pattern) for value in table[column]]
        for column, (_, pattern) in labels.items()
    ]
    return pd.DataFrame(rows, [label for label, _ in labels.values()], table.index)


def _how_far(comparison: Compared) -> str:
    model = next(iter(comparison.posteriors.values())).model
    text = _HOW_FAR.format(sites="of these quantities" if model.estimands else "sites")
    return f"{model.estimand_note} {text}".strip()


def _model_text(comparison: Compared) -> str:
    posterior = next(iter(comparison.posteriors.values()))
    bags = posterior.bags
    text = (
        f"{in_words(posterior.model)} on {bags.num_bags:,} bags with {bags.num_instances:,} "
        f"instances of {bags.num_features:,} features."
    )
    if comparison.has_one_target_density:
        return text
    named = "; ".join(f"{name}: {v.target_density}" for name, v in comparison.verdicts.items())
    return f"{text} That is the first; the posteriors have different target densities: {named}."


def _test_text(comparison: Compared) -> str:
    if comparison.test is None:
        return "No test bags were given."
    return f"Scores on {comparison.test.num_bags:,} held-out bags."


def _page(comparison: Compared, sections: list[_Section], notes: list[str]) -> str:
    names = ", ".join(comparison.posteriors)
    full = _Section(
        "The verdicts in full",
        comparison.reference_sentence,
        pd.DataFrame(),
        [],
        tuple(comparison.sentences.values()),
    )
    every = [*sections, full]
    contents = "".join(
        f'<li><a href="#{_anchor(one.title)}">{escape(one.title)}</a></li>' for one in every
    )
    body = "".join(_section_html(section) for section in every)
    remarks = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(names)}</title><style>{_CSS}</style></head><body>"
        f"<h1>How reliable are they?</h1>{_headlines_html(comparison)}"
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>'
        f"{body}{remarks}</body></html>\n"
    )


def _headlines_html(comparison: Compared) -> str:
    """One line for each posterior: its name, the word, the number that decides."""
    lines = "".join(
        f'<li class="{one.word.replace(" ", "-")}"><b>{escape(name)}</b> '
        f"<strong>{one.word}</strong> {escape(one.reason)}</li>"
        for name, one in comparison.headlines.items()
    )
    return f'<ul class="verdicts">{lines}</ul>'


def _anchor(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower()).strip("-")


def _section_html(section: _Section) -> str:
    pictures = "".join(_picture_html(picture) for picture in section.pictures)
    table, findings = _table_html(section.table), _list_html(section.findings)
    return (
        f'<h2 id="{_anchor(section.title)}">{escape(section.title)}</h2>'
        f"<p>{escape(section.text)}</p>{findings}{table}{pictures}"
    )


def _list_html(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _measured(comparison: Compared, group: str) -> pd.DataFrame:
    """The measures of a group, engines as columns; rows and columns that say nothing left out."""
    table = comparison.table
    cells = pd.DataFrame(
        {
            measure.label: [formatted(measure, value) for value in table[measure.column]]
            for measure in MEASURES
            if measure.group == group and measure.column in table
        },
        index=table.index,
    ).T
    says = ~cells.isin(["–", ""])
    return cells.loc[says.any(axis=1), says.any(axis=0)]


def _table_html(cells: pd.DataFrame) -> str:
    if cells.empty:
        return ""
    cells = cells.rename_axis(columns=None)
    return f'<div class="wide">{cells.to_html(border=0, escape=True)}</div>'


def _picture_html(picture: _Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    caption = escape(picture.caption)
    return (
        f"<h3>{escape(picture.conclusion)}</h3>"
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
