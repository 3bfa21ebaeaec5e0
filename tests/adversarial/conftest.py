"""What holds for all hostile and clumsy input: it is tried as users try it, and leaves no trace."""

import pytest


@pytest.fixture(autouse=True)
def _as_users_do(without_type_checks):
    """Without the type checker of the tests, which would refuse first."""


@pytest.fixture(autouse=True)
def _writes_nothing_unasked(tmp_path_factory, monkeypatch):
    """Nothing appears where the program runs."""
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    yield
    assert [path.name for path in here.iterdir() if path.name != ".hypothesis"] == []
