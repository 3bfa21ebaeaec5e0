"""What holds for all hostile and clumsy input: it is tried as users try it."""

import pytest


@pytest.fixture(autouse=True)
def _as_users_do(without_type_checks):
    """Without the type checker of the tests, which would refuse first."""
