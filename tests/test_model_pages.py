"""Pages of the models: all sections, names that are there, programs that run, true pictures."""

import importlib.util
import re
from operator import attrgetter
from pathlib import Path

import milzoo.models
import pytest
from milzoo.models import ScoreThreshold
from milzoo.models.registry import models_by_name

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "docs" / "models"
SECTIONS = [
    "The story",
    "Plate diagram",
    "Symbols",
    "Equations",
    "What is exact, what is a bound",
    "In the paper",
    "Results",
    "Use it",
    "References",
]
# Ours: other tests register models of their own. The command line cannot make the last one.
NAMES = sorted(
    {
        name
        for name, model in models_by_name().items()
        if getattr(milzoo.models, model.__name__, None) is model
    }
    | {ScoreThreshold.name}
)
# A page of two models.
ALSO_ON = {"cardinality": ("cardinality_gp",)}
DRAWN = sorted([*NAMES, "cardinality_gp"])


def section(page: str, title: str) -> str:
    """What stands under a heading of a page."""
    text = (FOLDER / f"{page}.md").read_text("utf-8")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def plates():
    """The program that draws the plate diagrams."""
    path = REPOSITORY / "docs" / "plates.py"
    specification = importlib.util.spec_from_file_location("plates", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def programs(plates):
    """Models and programs of the diagrams."""
    return plates.programs()


def test_each_model_has_a_page_and_no_other():
    assert {path.stem for path in FOLDER.glob("*.md")} == {*NAMES, "index"}


def test_the_table_of_models_has_each_page():
    index = (FOLDER / "index.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| \[`\w+`\]\((\w+)\.md\)", index, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_all_sections_in_order(name):
    text = (FOLDER / f"{name}.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert all(section(name, title).strip() for title in SECTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_symbols_have_names_that_the_code_has(name, plates, programs):
    models = [programs[one][0] for one in (name, *ALSO_ON.get(name, ()))]
    bags = plates.small_bags()
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", section(name, "Symbols"), re.MULTILINE)
    named = [found for cell in rows for found in re.findall(r"`([^`]+)`", cell)]
    assert len(named) > 3
    missing = [one for one in named if not _is_there(one, models, bags)]
    assert not missing


def _is_there(name, models, bags) -> bool:
    """Whether a model has a field or a site of this name, or bags have the attribute."""
    if name.startswith("bags."):
        return hasattr(bags, name.removeprefix("bags."))
    return any(name in model.dims or _has(model, name) for model in models)


def _has(model, name) -> bool:
    try:
        attrgetter(name)(model)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_results_name_a_page_that_has_them(name):
    """Each figure with decimals, and the commands that made them, stand there in these words."""
    results = section(name, "Results")
    linked = set(re.findall(r"\]\((\.\./[^)#]+\.md)", results))
    pages = "\n".join((FOLDER / page).read_text("utf-8") for page in linked)
    commands = re.findall(r"`((?:python|milzoo) [^`]+)`", results)
    text = re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)", "", results)
    figures = re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?", text)
    assert commands
    assert figures
    assert all(command in pages for command in commands)
    missing = [one for one in figures if not re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", pages)]
    assert not missing


@pytest.mark.in_ci
@pytest.mark.parametrize("name", NAMES)
def test_the_program_of_a_page_runs(name):
    (program,) = re.findall(r"```python\n(.*?)```", section(name, "Use it"), re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= 7
    scope = {}
    exec(program, scope)
    assert {"prediction", "posterior"} & set(scope)


@pytest.mark.parametrize("name", DRAWN)
def test_a_plate_diagram_is_that_of_the_program(name, plates, programs):
    """Or `python docs/plates.py` has to draw it again."""
    stored = (FOLDER / "plates" / f"{name}.dot").read_text("utf-8")
    assert stored == plates.source(*programs[name])


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_shows_all_that_its_source_has(name):
    source, picture = (
        (FOLDER / "plates" / f"{name}.{suffix}").read_text("utf-8") for suffix in ("dot", "svg")
    )
    drawn = set(re.findall(r"<title>([^<%]+)</title>", picture))
    sites = set(re.findall(r"^\t+(\w+) \[", source, re.MULTILINE)) - {"node", "edge"}
    arrows = re.findall(r"^\t(\w+) -> (\w+)$", source, re.MULTILINE)
    plates = set(re.findall(r"subgraph (\w+)", source))
    assert drawn == sites | plates | {f"{tail}&#45;&gt;{head}" for tail, head in arrows}


@pytest.mark.parametrize("name", DRAWN)
def test_each_picture_is_on_a_page(name):
    shown = re.compile(rf"!\[[^\]]{{20,}}\]\(plates/{name}\.svg\)")
    assert any(shown.search(page.read_text("utf-8")) for page in FOLDER.glob("*.md"))
