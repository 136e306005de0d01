"""Who makes patches: `ruff`, `bump`, `command` and `llm`, and whatever else is installed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from towline.fix.fixers.base import Fixer
from towline.fix.fixers.config import FixerConfig

# ------------------------------------------------------------------ loading by entry points
# Finds fixers by their entry points and builds those that are asked for.
#
# An entry point of the group `towline.fixers` is a callable that takes a `FixerConfig` and returns
# a `Fixer`. One that cannot be loaded is left out, with a line in the log that says why.

GROUP: Final = "towline.fixers"
_OWN: Final = "towline.fix.fixers."
_log = logging.getLogger("towline.fixers")


def load_fixers(
    names: Sequence[str], config: FixerConfig, found: Iterable[EntryPoint] | None = None
) -> Mapping[str, Fixer]:
    """Those of `names` that can be built, in that order; `found` is for what is not installed."""
    known: dict[str, EntryPoint] = {}
    for point in sorted(
        entry_points(group=GROUP) if found is None else found,
        key=lambda point: not point.value.startswith(_OWN),
    ):
        known.setdefault(point.name, point)  # A plug-in cannot replace one of ours.
    fixers: dict[str, Fixer] = {}
    for name in dict.fromkeys(names):
        fixer = _built(name, known.get(name), config)
        if fixer is not None:
            fixers[name] = fixer
    return fixers


def _built(name: str, point: EntryPoint | None, config: FixerConfig) -> Fixer | None:
    if point is None:
        _left_out(name, "no package that is installed offers it")
        return None
    try:
        fixer = point.load()(config)
    except Exception as error:  # a plug-in may fail in any way
        _left_out(name, f"{type(error).__name__}: {error}")
        return None
    if not all(callable(getattr(fixer, method, None)) for method in ("fits", "fix")):
        _left_out(name, f"{point.value} does not return a fixer")
        return None
    made: Fixer = fixer
    return made


def _left_out(name: str, why: str) -> None:
    said = "".join(char if char.isprintable() else " " for char in why[:300])
    _log.warning("the fixer %s is left out: %s", name, said)
