"""The examples in docstrings: every public name has one, and it runs as printed."""

import ast
import doctest
import importlib
import inspect
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
WINGS = list(PROJECT["tool"]["setuptools"]["package-dir"].values())
MODULES = sorted(
    ".".join(("milzoo", *path.relative_to(REPOSITORY).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for wing in WINGS
    for path in (REPOSITORY / wing).rglob("*.py")
)
PUBLIC = [
    f"milzoo.{wing}.{name}"
    for wing in WINGS
    for name in importlib.import_module(f"milzoo.{wing}").__all__
]


def found_doctests(name: str) -> list[doctest.DocTest]:
    """The doctests of a module; doctest alone overlooks functions with checked shapes."""
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = doctest.DocTestFinder(recurse=False).find(module, globs={})
    for key, value in vars(module).items():
        if getattr(value, "__module__", None) == name and hasattr(value, "__name__"):
            tests += finder.find(value, f"{name}.{key}", module=False, globs={})
    return [test for test in tests if test.examples]


@pytest.mark.in_ci
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_run_as_printed(name, tmp_path, monkeypatch):
    """Each by itself: a reader copies one, with all that it imports."""
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    tests = found_doctests(name)
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)

    source = Path(importlib.import_module(name).__file__).read_text("utf-8")
    assert sum(len(test.examples) for test in tests) == count_of_examples(source)


def count_of_examples(source: str) -> int:
    """How many doctest examples the docstrings of a source have."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = [
        ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)
    ]
    return sum(len(doctest.DocTestParser().get_examples(text)) for text in docstrings if text)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name):
    """In its own docstring; a constant has it in the docstring of its wing."""
    wing, _, last = name.rpartition(".")
    module = importlib.import_module(wing)
    value = getattr(module, last)
    is_documented = inspect.isclass(value) or inspect.isroutine(value)
    text = value.__doc__ if is_documented else module.__doc__
    examples = doctest.DocTestParser().get_examples(text or "")
    assert examples
    assert any(last in example.source for example in examples)
