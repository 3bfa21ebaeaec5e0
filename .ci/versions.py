"""Test milzoo with the oldest or the newest versions of what it is made of: .ci/versions.py oldest.

`oldest` takes every lower bound in pyproject.toml as the version; `newest` takes what the registry
has today. constraints.txt has no say. The environment is made in a temporary folder, and deleted.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FOR_TESTS = ("beartype", "hypothesis", "pytest>=9", "pytest-xdist", "setuptools>=77", "tinygp")
# One file for each way in which milzoo uses the four: programs, PyMC programs, closed forms,
# samplers, optimisers, sampling by blackjax, draws in an ArviZ tree, and the report.
TESTS = (
    "tests/models/test_vgpmil.py",
    "tests/models/test_cardinality.py",
    "tests/models/pymc/test_vgpmil.py",
    "tests/inference/test_closed_form_vgpmil.py",
    "tests/inference/test_nuts.py",
    "tests/inference/test_gibbs.py",
    "tests/inference/test_svi.py",
    "tests/inference/test_tempered_smc.py",
    "tests/inference/test_posterior.py",
    "tests/diagnostics/test_comparison.py",
    "tests/diagnostics/test_report.py",
)
# The suite takes warnings for errors; what old and new versions say of their future is none here.
IGNORED = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")


def requirements(which: str) -> list[str]:
    """What pip is asked for: the requirements, or each one with a lower bound at that bound."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    stated = project["dependencies"] + project["optional-dependencies"]["pymc"]
    if which == "newest":
        return stated
    return [re.sub(r">=(\S+)", r"==\1", requirement) for requirement in stated]


def main(which: str) -> int:
    """Make the environment, say what is in it, and run the tests."""
    with tempfile.TemporaryDirectory(prefix="milzoo-") as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, *requirements(which), *FOR_TESTS], check=True)
        editable = ["--no-deps", "--no-build-isolation", "--editable", REPOSITORY]
        subprocess.run([*install, *editable], check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
        subprocess.run([python, "-m", "pip", "list", "--format", "freeze"], check=True)
        quiet = [part for name in IGNORED for part in ("-W", f"ignore::{name}")]
        tests = [python, "-m", "pytest", "-n0", "-p", "no:cacheprovider", *quiet, *TESTS]
        return subprocess.run(tests, cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:] not in (["oldest"], ["newest"]):
        sys.exit("usage: .ci/versions.py oldest | newest")
    sys.exit(main(sys.argv[1]))
