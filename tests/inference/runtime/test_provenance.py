"""What is kept beside a number says which code made it."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from milzoo.inference.runtime.provenance import provenance

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_commit_is_the_packages_wherever_it_runs(tmp_path, monkeypatch):
    command = ["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"]
    expected = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    monkeypatch.chdir(tmp_path)
    found = provenance()
    assert found["commit"] == expected
    assert found["date"] == datetime.now(UTC).date().isoformat()
    assert "jax " in found["versions"] and "cores" in found["machine"]


def test_without_git_the_commit_is_empty(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance()["commit"] == ""
