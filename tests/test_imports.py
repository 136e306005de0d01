"""Every module can be imported, with the dependencies that are installed."""

from __future__ import annotations

import importlib
import pkgutil

import towline
import towline_once
import towline_sim

MODULES = sorted(
    found.name
    for package in (towline, towline_once, towline_sim)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not found.name.endswith("__main__")  # the command line itself
)


def test_every_module_can_be_imported() -> None:
    """None needs a dependency, or a name in one, that is not there."""
    broken = {}
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            broken[name] = str(error)
    assert len(MODULES) > 200
    assert broken == {}
