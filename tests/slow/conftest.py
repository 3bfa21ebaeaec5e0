"""The calibration code that the quick tests use too: test files cannot be imported."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def simulation_based_calibration():
    folder = Path(__file__).parent.parent / "inference"
    path = folder / "simulation_based_calibration.py"
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
