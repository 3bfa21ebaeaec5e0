"""The notebooks as cards, each with its first picture: `make site` runs this before Sphinx.

Reads docs/notebooks/*.ipynb, and writes index.md and pictures/ beside them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent / "notebooks"

IDEAS = {
    "01_bags": "What the problem is, on images that everyone can judge.",
    "02_a_bound_and_its_posterior": (
        "Jaakkola, Pólya-Gamma, why they are one, and what they cost beside the exact answer."
    ),
    "03_when_a_bound_lies": "A Gamma scale mixture: a bound that rises, and its model.",
    "04_three_label_updates": (
        "A tighter bound, and why the published accuracy came from the loosest."
    ),
    "05_contributions_that_add_up": "VWSGP: labels of bags teach latent values of instances.",
    "06_witnesses": "DPMIL: clusters that have no names.",
    "07_counting": "Cardinality: sums over all labellings, exactly.",
    "08_neighbours": "Scores of neighbourhood, their peaks and their threshold.",
    "09_which_engine_when": "All engines on all models: time against error.",
    "10_bring_your_own_model": (
        "A model and its closed form from outside, with every engine, test and picture."
    ),
    "11_the_bound_that_switches_features_off": (
        "Hyper-parameters by the bound, by the evidence, and by NUTS."
    ),
}


def title_of(notebook: dict[str, Any]) -> str:
    """The heading of the first cell, without its number."""
    heading = "".join(notebook["cells"][0]["source"]).splitlines()[0]
    return heading.lstrip("# 0123456789.")


def first_picture(notebook: dict[str, Any]) -> bytes | None:
    """The first PNG that the notebook shows; None if it shows none."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    pictures = [output["data"]["image/png"] for output in outputs if _has_picture(output)]
    return base64.b64decode(pictures[0]) if pictures else None


def _has_picture(output: dict[str, Any]) -> bool:
    return "image/png" in output.get("data", ())


def card(name: str, folder: Path) -> str:
    """One card of the gallery; its picture is written into ``folder``."""
    notebook = json.loads((folder / f"{name}.ipynb").read_text("utf-8"))
    lines = [f":::{{grid-item-card}} {title_of(notebook)}", f":link: {name}", ":link-type: doc"]
    if (picture := first_picture(notebook)) is not None:
        (folder / "pictures").mkdir(exist_ok=True)
        (folder / "pictures" / f"{name}.png").write_bytes(picture)
        lines.append(f":img-top: pictures/{name}.png")
    return "\n".join([*lines, "", IDEAS[name], ":::"])


def gallery(folder: Path) -> str:
    """The page of all notebooks that are in ``folder``."""
    names = sorted(path.stem for path in folder.glob("*.ipynb"))
    cards = "\n\n".join(card(name, folder) for name in names)
    return f"""# Notebooks

One idea each. All were run to make these pages; what they claim is asserted in them.

::::{{grid}} 1 2 3 3
:gutter: 3

{cards}
::::

```{{toctree}}
:hidden:

{"\n".join(names)}
```
"""


if __name__ == "__main__":
    (NOTEBOOKS / "index.md").write_text(gallery(NOTEBOOKS), "utf-8")
