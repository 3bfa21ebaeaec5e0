"""Models of other packages."""

import os
import subprocess
import sys

MODULE = """
from milzoo.models import BMIL

class Outside(BMIL):
    name = "outside"
"""
PROGRAM = """
from milzoo.models import registry
print(registry.models_by_name()["outside"].__module__)
registry.entry_points = None  # they are looked for once
print(registry.models_by_name()["outside"].__module__)
"""


def test_models_of_installed_packages_are_known_by_name(tmp_path):
    (tmp_path / "another_zoo.py").write_text(MODULE)
    told_by_the_installer = tmp_path / "another_zoo-1.0.dist-info"
    told_by_the_installer.mkdir()
    (told_by_the_installer / "METADATA").write_text("Name: another_zoo\nVersion: 1.0\n")
    entries = "[milzoo.models]\noutside = another_zoo:Outside\n"
    (told_by_the_installer / "entry_points.txt").write_text(entries)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["another_zoo", "another_zoo"]
