"""Plate diagrams of the models, as NumPyro's `render_model` draws them, into docs/models/plates.

.. code-block:: text

    python docs/plates.py

For each model it writes NAME.dot, the source that NumPyro makes, and NAME.svg, which Graphviz's
``dot`` makes of it. Pages show the second; a test holds the first to what programs give today.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from milzoo.datasets import Bags, load
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
    ProbitGPMIL,
    ScoreThreshold,
)
from numpyro.infer.inspect import generate_graph_specification, get_model_relations, render_graph

FOLDER = Path(__file__).parent / "models" / "plates"

# Lines and words that can be read on white and on black.
_GREY = "#767676"
# Axes of a site that are plates of the story, where a program draws all of the axis at once.
_PLATES = ("bag", "instance", "class", "component", "stick_break", "feature")
# The outer plate of each inner one.
_OUTER = {"instance": "bag", "component": "class", "stick_break": "class"}


def small_bags() -> Bags:
    """Six bags with instances of two features: a diagram does not depend on the data."""
    return load("kandemir2014").select(np.arange(6))


def programs() -> dict[str, tuple[Any, Callable]]:
    """The model and the program of each diagram, by the name of its file."""
    bags = small_bags()
    points = {"num_inducing": 3}
    cardinality = CardinalityModel.for_bags(bags)
    kernel = CardinalityKernel(cardinality, np.ones(bags.num_features), RBF(1.0, 1.0))
    with_labels = [
        VGPMIL.for_bags(bags, **points),
        CoupledVGPMIL.for_bags(bags, **points),
        DPMIL.for_bags(bags, max_components=2),
        cardinality,
        ProbitGPMIL.for_bags(bags, **points),
        BMIL.for_bags(bags),
        ScoreThreshold(),
        DiverseDensity.for_bags(bags),
    ]
    of_bags = [
        VWSGP.for_bags(bags, **points),
        GPMIL.for_bags(bags, **points),
        CardinalityGP.at_bags(kernel, bags),
    ]
    told = {model.name: (model, model.augmented()) for model in with_labels}
    return told | {model.name: (model, model) for model in of_bags}


def source(model: Any, program: Callable) -> str:
    """The diagram of a program in Graphviz's language."""
    bags = small_bags()
    # Where labels are given, what depends on them is a number and has no arrow.
    relations = get_model_relations(program, (bags.without_labels(),))
    relations["observed"] = get_model_relations(program, (bags,))["observed"]
    relations["plate_sample"] = _plates(model, relations)
    # From left to right no arrow crosses the name of a plate, which is at its bottom. Where there
    # are plates beside that of bags, it is the other way round.
    direction = "TB" if "class" in relations["plate_sample"] else "LR"
    graph = render_graph(generate_graph_specification(relations))
    graph.attr(
        rankdir=direction, bgcolor="transparent", color=_GREY, fontcolor=_GREY, fontname="Helvetica"
    )
    graph.attr("node", color=_GREY, fontname="Helvetica")
    graph.attr("edge", color=_GREY)
    # First, as Graphviz gives them to what comes after.
    graph.body = graph.body[-3:] + graph.body[:-3]
    return graph.source


def _plates(model: Any, relations: dict[str, Any]) -> dict[str, list[str]]:
    """The sites in each plate: NumPyro's plates, and the axes that the model names.

    A program draws dependent labels, or all components, as one event, for which NumPyro has no
    plate. Instances are in bags.
    """
    sites: dict[str, set[str]] = {name: set() for name in _PLATES}
    for name, members in relations["plate_sample"].items():
        sites[name] |= set(members)
    for site in relations["sample_sample"]:
        for axis in model.dims.get(site, ()):
            if axis in sites and not _is_joint(model, site, axis):
                sites[axis].add(site)
    for inner, outer in _OUTER.items():
        sites[outer] |= sites[inner]
    ordered = {
        name: [site for site in relations["sample_sample"] if site in members]
        for name, members in sites.items()
    }
    return {name: members for name, members in ordered.items() if members}


def _is_joint(model: Any, site: str, axis: str) -> bool:
    """Whether a site is one vector along this axis: means and precisions of DPMIL's Gaussians."""
    return axis == "feature" and "component" in model.dims[site]


def main() -> None:
    """Write both files of each diagram."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (model, program) in programs().items():
        path = FOLDER / f"{name}.dot"
        path.write_text(source(model, program), "utf-8")
        subprocess.run(["dot", "-Tsvg", path, "-o", path.with_suffix(".svg")], check=True)


if __name__ == "__main__":
    main()
