"""What a run leaves: samples, machine and versions, kept as JSON beside the pages made of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
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
        if not path.exists():
            return
        older = json.loads(path.read_text())["suites"]
        for name, suite in older.items():
            if name not in self.suites:
                taken = [Sample(**sample) for sample in suite.pop("samples")]
                self.suites[name] = SuiteResult(**suite, samples=taken)


def _rounded(value: Any) -> Any:
    """Four significant digits: the rest is noise, and would only swell the history."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
