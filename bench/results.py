"""What a run leaves: samples, machine and versions, kept as JSON beside the pages made of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.figures import Sample


@dataclass
class SuiteResult:
    date: str
    rounds: int
    quick: bool
    samples: list[Sample] = field(default_factory=list)

    @property
    def disturbed(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.disturbed]


@dataclass
class Results:
    machine: dict[str, str]
    versions: dict[str, str]
    suites: dict[str, SuiteResult] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_rounded(asdict(self)), indent=1) + "\n")

    def absorb_older(self, path: Path) -> None:
        """Keep the suites of an earlier run that this one did not repeat."""
        self.suites |= {k: v for k, v in _suites_in(path).items() if k not in self.suites}

    def join_older(self, path: Path) -> None:
        """Count the rounds of an earlier run before those of this one."""
        older = _suites_in(path)
        for name in self.suites.keys() & older.keys():
            now, before = self.suites[name], older[name]
            later = [replace(sample, round=sample.round + before.rounds) for sample in now.samples]
            now.samples, now.rounds = before.samples + later, before.rounds + now.rounds


def _suites_in(path: Path) -> dict[str, SuiteResult]:
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())["suites"]
    return {
        name: SuiteResult(**suite | {"samples": [Sample(**one) for one in suite["samples"]]})
        for name, suite in kept.items()
    }


def _rounded(value: Any) -> Any:
    """Four significant digits: the rest is noise, and would only swell the history."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
