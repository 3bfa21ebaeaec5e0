"""One word for each concept: what is written here, and each public name, has the standard one."""

import ast
import re
import tomllib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
WINGS = list(PROJECT["tool"]["setuptools"]["package-dir"].values())
FILES = (
    path
    for folder in [*WINGS, "examples", "benchmarks", "docs"]
    for path in (REPOSITORY / folder).rglob("*")
)
WRITTEN = [
    *map(Path, ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted(
        path.relative_to(REPOSITORY)
        for path in FILES
        if path.suffix in {".py", ".md"} and "notebooks" not in path.parts
    ),
]
MODULES = [path for path in WRITTEN if path.suffix == ".py" and path.parts[0] in WINGS]

# What is not written here, and the standard word for it.
STANDARD_WORDS = {
    r"laws?": "distribution, posterior or approximation",
    r"twins?": "PyMC program",
    r"(?<!vector )machines? on|(?:trained|learned|kernel|cardinality|both) machines?": "classifier",
    r"what (?:a |the )?bags? adds?|sums that (?:a |the )?bags? adds?": "sufficient statistics",
    r"(?:coloured|white) (?:coordinates|values|draws|space)": "unwhitened, whitened",
    r"pull(?:s|ed|ing)?": "linear term, attraction",
    r"climb(?:s|ed|ing)?": "optimise, maximise, rise",
    r"hills?": "mode, maximum",
    r"slopes?": "gradient, derivative",
    r"(?:height|top)s? of (?:an?|the|its) (?:bound|ELBO|objective|density|mode)": "value, mode",
    r"(?:an?|the|its|this|their|each|whose|same|small|large|of) shares?": "fraction, weight",
    r"shares? of": "fraction of",
    r"sticks? (?:is |are )?(?:on|off)": "concentration1, concentration0",
    r"rooms?": "buffer",
    r"spreads?": "sd or width: which?",
    r"(?:far|further|way) off": "error, distance",
    r"settled|evaluated_at": "refresh_moments, with_hyperparameters",
    r"is worth|are worth": "relative efficiency, ESS per draw",
    r"judged by": "estimands",
    r"identified": "estimands",
    r"mends?|mended": "importance weighting corrects",
    r"trusted": "reliable",
    r"drawn again": "replicated",
    r"bags? (?:that (?:is|are|was|were) )?left out|left-out bags?": "held-out, leave-one-out",
    r"(?:bag|instance|accumulated)[ _]evidence|evidence of (?:an?|each) instance": "latent value",
    r"(?:own|other|another|one|same) targets?(?! densit| accept)": "target density",
    r"targets? of (?:an?|the|its|each) (?:posterior|approximation|sampler)": "target density",
    r"mixings?": "scale mixture",
    r"(?:Parzen|k-NN|neighbours?|neighbourhood) measures?": "neighbourhood score",
    r"measures? of (?:the )?neighbou?rs": "neighbourhood score",
    r"what is known of": "the predictive distribution of",
    r"that which|of which": "a sentence with a subject of its own",
    r"as well(?! as)": "also, too, and",
    r"things?": "the noun that it stands for",
}
# Phrases that have such a word and keep it, each with its reason.
EXCEPTIONS: dict[str, str] = {
    "slope=1": "Matplotlib's keyword for the diagonal of a plot",
    "mixing distribution": "p(ω) of a scale mixture, as statisticians call it",
    "mixing density": "the density of that distribution",
    "poor mixing": "of chains",
    "mixing well": "of chains",
    "mixing as NUTS": "of chains",
    "not identified": "identifiability is no estimand, but the reason for one",
    "are not\n  identified": "the same",
}

# Words that no public name has, and the standard ones.
STANDARD_NAMES = {
    **dict.fromkeys(("law", "laws"), "distribution, posterior, approximation"),
    **dict.fromkeys(("twin", "twins"), "PyMC program"),
    **dict.fromkeys(("machine", "machines"), "classifier"),
    **dict.fromkeys(("sums", "seen", "moved"), "expected sufficient statistics, m_step"),
    **dict.fromkeys(("settled", "coloured", "white"), "refresh_moments, unwhitened, whitened"),
    **dict.fromkeys(
        ("pull", "slope", "height", "climb", "hill", "top"), "gradient, objective, mode"
    ),
    **dict.fromkeys(("share", "shares", "sticks_on", "sticks_off"), "fraction, concentration"),
    **dict.fromkeys(("room", "place", "held", "inside"), "buffer, device, cached, traceable"),
    **dict.fromkeys(("worth", "spread", "shift", "further"), "relative efficiency, sd, bias"),
    **dict.fromkeys(("target", "targets"), "target density, unless it is a bag's label"),
    **dict.fromkeys(("evidence", "mixing"), "latent, unless it is p(D); scale mixture"),
    **dict.fromkeys(("measure", "measures"), "neighbourhood score"),
    **dict.fromkeys(("judged", "identified"), "estimands"),
    **dict.fromkeys(("trusted", "mend", "mends", "mended"), "reliable, correct"),
    **dict.fromkeys(("left_out", "drawn_again"), "held out, replicated"),
}
# Public names that have such a word and keep it, of some wings or of all, each with its reason.
NAMES_KEPT = {
    r"papers:machine": "the computer on which a result was made",
    r"height|share_y": "the size of a figure, and Matplotlib's word for a common axis",
    r"datasets:shift": "of simulated positive instances: no error of an estimate",
    r"sums_between_bags": "a kernel: sums over pairs of instances, and no expected statistics",
    r"inside_a_bag|inside_the_unit_interval": "where a number or an instance is",
    r"\w*held_out\w*|HeldOut\w*": "the standard word itself",
    r"diagnostics:(?:Measure|MEASURES|measures?)": "a column of the table, no score of neighbours",
    r"datasets:target|(?:plot_|bag_|with_)?targets|bag_target|OF_TARGETS": "labels of regression",
    r"target_distributions|target_predictions|TargetPrediction|target_difference": "the same",
    r"(?:has_(?:one|other)_|names_by_|log_)?target_densit(?:y|ies)": "the standard word itself",
    r"target_accept|TARGET_ACCEPT": "NumPyro's and PyMC's name of an acceptance probability",
    r"(?:\w+_)?(?:log_)?evidence(?:_\w+)?|\w*Evidence": "the marginal likelihood p(D)",
}


def faults_of(text: str) -> list[str]:
    """Each word of ``text`` that has a standard one, with its line and that word."""
    for phrase in EXCEPTIONS:
        text = re.sub(re.escape(phrase), "\n" * phrase.count("\n"), text, flags=re.IGNORECASE)
    return [
        f"line {text.count('\n', 0, found.start()) + 1}: {found.group()!r}, here: {standard}"
        for word, standard in STANDARD_WORDS.items()
        for found in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]


def public_names(tree: ast.AST) -> set[str]:
    """Names of classes and functions, of their arguments and fields, and of constants."""
    names = set()
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                names |= {name} | public_names(node)
            case ast.FunctionDef(name=name, args=given) if name == "__init__" or name[0] != "_":
                arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                names |= {name, *(argument.arg for argument in arguments)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def words_of(name: str) -> set[str]:
    """Words of a name in snake case or camel case, and neighbours joined."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    return {*words, *map("_".join, pairwise(words))}


def is_kept(name: str, wing: str, patterns: Iterable[str] = tuple(NAMES_KEPT)) -> bool:
    """Whether a name of a wing stands in the list of those that are kept."""
    return any(
        re.fullmatch(f"(?:{pattern})", name) or re.fullmatch(f"(?:{pattern})", f"{wing}:{name}")
        for pattern in patterns
    )


def names_with_faults(names: set[str]) -> set[str]:
    """The names with a word that has a standard one."""
    return {name for name in names if words_of(name) & STANDARD_NAMES.keys()}


@pytest.mark.parametrize("path", WRITTEN, ids=str)
def test_words_are_the_standard_ones(path):
    assert not faults_of((REPOSITORY / path).read_text("utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_public_names_have_the_standard_words(path):
    names = public_names(ast.parse((REPOSITORY / path).read_text("utf-8"))) | {path.stem}
    assert {name for name in names_with_faults(names) if not is_kept(name, path.parts[0])} == set()


@pytest.mark.parametrize("phrase", EXCEPTIONS)
def test_an_exception_is_still_needed(phrase):
    texts = ((REPOSITORY / path).read_text("utf-8") for path in WRITTEN)
    assert any(re.search(re.escape(phrase), text, re.IGNORECASE) for text in texts)


@pytest.mark.parametrize("kept", NAMES_KEPT)
def test_a_name_that_is_kept_is_still_there(kept):
    for path in MODULES:
        names = public_names(ast.parse((REPOSITORY / path).read_text("utf-8"))) | {path.stem}
        if any(is_kept(name, path.parts[0], (kept,)) for name in names_with_faults(names)):
            return
    pytest.fail(f"no name is {kept}")


def test_a_word_that_has_a_standard_one_is_found():
    assert faults_of("The posterior\nis no law that one climbs.") == [
        "line 2: 'law', here: distribution, posterior or approximation",
        "line 2: 'climbs', here: optimise, maximise, rise",
    ]


def test_a_name_that_has_a_standard_word_is_found():
    tree = ast.parse("class BagTwin:\n    hill: float\n\ndef held_out(left_out, _pull): ...")
    assert names_with_faults(public_names(tree)) == {"BagTwin", "hill", "held_out", "left_out"}


def test_a_name_is_kept_in_its_wing_alone():
    assert is_kept("measure", "diagnostics") and not is_kept("measure", "estimators")
    assert is_kept("target", "datasets") and not is_kept("target", "inference")
