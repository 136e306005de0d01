"""The table of metrics, as prometheus-client knows them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import REGISTRY

import towline
import towline_once
from scripts.reference_tables import table

_SOURCES: Final = [Path(one.__path__[0]) for one in (towline, towline_once)]


class Metric(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def every_metric() -> list[Metric]:
    """All that our modules make, whichever of them a process has loaded."""
    for module in _modules():
        importlib.import_module(module)
    names: dict[Any, list[str]] = getattr(REGISTRY, "_collector_to_names")  # noqa: B009
    found = (_metric(collector) for collector in list(names))
    return sorted(metric for metric in found if metric is not None)


def _modules() -> Iterator[str]:
    for source in _SOURCES:
        for file in sorted(source.rglob("*.py")):
            if "from prometheus_client import" in file.read_text(encoding="utf-8"):
                parts = file.relative_to(source.parent).with_suffix("").parts
                yield ".".join(part for part in parts if part != "__init__")


def _metric(collector: Any) -> Metric | None:
    name = str(getattr(collector, "_name", ""))
    if not name.startswith("towline_"):
        return None
    kind = str(collector._type)
    shown = f"{name}_total" if kind == "counter" else name
    return Metric(shown, kind, tuple(collector._labelnames), str(collector._documentation))


def metrics() -> str:
    rows = [
        (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.text)
        for one in every_metric()
    ]
    return table(("metric", "kind", "labels", "what"), rows)
