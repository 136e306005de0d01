"""What is counted of jobs."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

JOBS = Counter("towline_jobs", "Attempts by how they ended", ["kind", "outcome"])
RETRIES = Counter("towline_pipeline_retry", "Attempts that will be repeated", ["kind"])
SKIPPED = Counter("towline_pipeline_runs_skipped", "Jobs that another worker had begun", ["kind"])
REAPED = Counter("towline_jobs_reaped", "Jobs taken from workers that died", ["kind", "state"])
REPUBLISHED = Counter("towline_jobs_republished", "Jobs a broker was told of once more")
QUEUED = Gauge("towline_jobs_queued", "Jobs that wait")
RUNNING = Gauge("towline_jobs_running", "Jobs that run")

_cells: dict[tuple[str, str], Counter] = {}


def count_job(kind: str, outcome: str) -> None:
    cell = _cells.get((kind, outcome))
    if cell is None:
        cell = _cells[kind, outcome] = JOBS.labels(kind, outcome)
    cell.inc()
    if outcome == "retried":
        RETRIES.labels(kind).inc()
