"""What is counted of the tow."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

SWEEPS = Counter("towline_sweeps", "Sweeps of the reconciler by how they ended", ["outcome"])
STALE = Gauge("towline_pulls_stale", "Stale pull requests at the last sweep")
DECISIONS = Counter("towline_decisions", "Decisions of sweeps", ["rule", "action"])
REMEDIES_MADE = Counter(
    "towline_remedies", "Remedies by what came of them", ["strategy", "outcome"]
)
ESCALATIONS = Counter("towline_escalations", "Pull requests handed to a person", ["rule"])
DRIFTS = Counter("towline_drifts", "Records corrected by a look at the forge")
FORGE_CALLS = Counter("towline_sweep_forge_calls", "Calls to forges made by sweeps")
SWEEP_SECONDS = Histogram("towline_sweep_seconds", "How long a sweep takes")
