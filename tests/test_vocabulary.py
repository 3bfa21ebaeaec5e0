"""One word for each concept: what is written here has the standard one."""

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
FOLDERS = [*PROJECT["tool"]["setuptools"]["package-dir"].values(), "examples", "benchmarks", "docs"]
FILES = (path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*"))
WRITTEN = [
    Path("README.md"),
    *sorted(
        path.relative_to(REPOSITORY)
        for path in FILES
        if path.suffix in {".py", ".md"} and "notebooks" not in path.parts
    ),
]

# What is not written here, and the standard word for it.
STANDARD_WORDS = {
    r"laws?": "distribution, posterior or approximation",
    r"twins?": "PyMC program",
    r"coloured (?:coordinates|values|draws|space)": "unwhitened",
    r"pull(?:s|ed|ing)?": "linear term, attraction",
    r"climb(?:s|ed|ing)?": "optimise, maximise, rise",
    r"hills?": "mode, maximum",
    r"slopes?": "gradient, derivative",
    r"(?:an?|the|its|this|their|each|whose|same|small|large|of) shares?": "fraction, weight",
    r"shares? of": "fraction of",
    r"spreads?": "sd or width: which?",
    r"settled|evaluated_at": "refresh_moments, with_hyperparameters",
    r"is worth|are worth": "relative efficiency, ESS per draw",
    r"judged by": "estimands",
    r"mends?|mended": "importance weighting corrects",
    r"trusted": "reliable",
    r"drawn again": "replicated",
    r"bags? (?:that (?:is|are|was|were) )?left out|left-out bags?": "held-out, leave-one-out",
    r"what is known of": "the predictive distribution of",
    r"that which|of which": "a sentence with a subject of its own",
    r"as well(?! as)": "also, too, and",
    r"things?": "the noun that it stands for",
}
# Phrases that have such a word and keep it, each with its reason.
EXCEPTIONS: dict[str, str] = {
    "slope=1": "Matplotlib's keyword for the diagonal of a plot",
}


def faults_of(text: str) -> list[str]:
    """Each word of ``text`` that has a standard one, with its line and that word."""
    for phrase in EXCEPTIONS:
        text = re.sub(re.escape(phrase), "", text, flags=re.IGNORECASE)
    return [
        f"line {text.count('\n', 0, found.start()) + 1}: {found.group()!r}, here: {standard}"
        for word, standard in STANDARD_WORDS.items()
        for found in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", WRITTEN, ids=str)
def test_words_are_the_standard_ones(path):
    assert not faults_of((REPOSITORY / path).read_text("utf-8"))


@pytest.mark.parametrize("phrase", EXCEPTIONS)
def test_an_exception_is_still_needed(phrase):
    texts = ((REPOSITORY / path).read_text("utf-8") for path in WRITTEN)
    assert any(re.search(re.escape(phrase), text, re.IGNORECASE) for text in texts)


def test_a_word_that_has_a_standard_one_is_found():
    assert faults_of("The posterior\nis no law that one climbs.") == [
        "line 2: 'law', here: distribution, posterior or approximation",
        "line 2: 'climbs', here: optimise, maximise, rise",
    ]
