"""What is counted of fix runs; `towline_pipeline_retry` counts the retries of all jobs."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from towline.jobs.runner import SKIPPED as JOBS_SKIPPED

STARTED = Counter("towline_pipeline_runs_started", "Fix runs that were asked for", ["cause"])
ENDED = Counter(
    "towline_pipeline_runs_ended",
    "Fix runs that ended: done, already_proposed or blocked",
    ["outcome"],
)
SKIPPED = JOBS_SKIPPED.labels("fix")
LOOP_BLOCKED = Counter(
    "towline_pipeline_loop_blocked", "Jobs that found their run blocked, cooling or used up"
)
PR_SKIPPED = Counter(
    "towline_pr_create_skipped", "Pull requests not opened because one was there already"
)
STAGES = Counter("towline_pipeline_stages", "Stages that ended", ["stage", "outcome"])
STAGE_SECONDS = Histogram(
    "towline_pipeline_stage_seconds",
    "How long stages took",
    ["stage"],
    buckets=(0.1, 0.5, 1, 5, 15, 60, 180, 600, 1200),
)
AUDITS = Counter(
    "towline_audits", "Audits of pinned dependencies: clean, found or failed", ["outcome"]
)
