"""A large fleet by plain SQL: pull requests with their logs, deliveries, jobs and runs.

The tables are those that Towline's own migrations made. Repositories, states, ages and diagnoses
are spread as a busy fleet has them; one pull request has a log of five thousand lines.
"""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any, get_args

from towline.dashboard.fleet import ORDER
from towline.pulls.lifecycle import TERMINAL
from towline.reconciler.rules import RuleName

REPOS = 200
_RULES = get_args(RuleName)
LONG_REPO, LONG_NUMBER, LONG_LOG = "octo-org/app-1", 1, 5_000
_FACTS = json.dumps(
    {
        "head_sha": "0123456789abcdef0123456789abcdef01234567",
        "checks": {
            name: {"status": "completed", "conclusion": "success", "at": 1.7e9, "run_id": "1234567"}
            for name in ("build", "test", "lint", "docs")
        },
        "policy_checks": {"policy-bot": {"status": "in_progress", "conclusion": "pending"}},
        "conflicts": False,
        "behind": False,
    }
)
_LIVE = tuple(state for state in ORDER if state not in TERMINAL)
_LIBRARIES = ("requests", "urllib3", "jinja2", "pillow", "cryptography", "django", "aiohttp")
_NUMBERS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count})"
_HOUR_US = 3_600_000_000

# Four of ten have ended. A life is up to a day and a half old, so that a good part is stale.
_PULLS = """
INSERT INTO towline_prs
  (repo, number, forge, url, title, author, head_ref, base_ref, head_sha, vulnerability_id, state,
   since_us, created_us, updated_us, counts, lifetime, path, facts, diagnosis,
   last_remediation_us, version, last_event, expires_us)
{numbers}
SELECT 'octo-org/app-' || (n % {repos}), n, 'github', 'https://forge.example/pull/' || n,
  'Bump ' || library || ' from 2.' || (n % 40) || ' to 3.' || (n % 17), 'dependabot[bot]',
  'dependabot/pip/' || library || '-3.' || (n % 17) || '-' || n, 'main',
  lower(hex(randomblob(20))), 'CVE-2025-' || (n % 9000), state, since, since - 5400000000, since,
  '{{"rebuild": 1}}', '{{"rebuild": 2}}', '["CREATED", "CHECKS_RUNNING"]', '{facts}',
  CASE WHEN state IN ('MERGED', 'CLOSED') THEN NULL ELSE
    '{{"rule":"' || rule || '","reason":"build failed: exit code ' || (n % 9) || '","evidence":'
    || '"the end of a log, {evidence}","next_action":"'
    || CASE state WHEN 'NEEDS_INTERVENTION' THEN 'NEEDS_INTERVENTION' ELSE 'REBUILD' END
    || '","budget_left":2,"at":' || (since / 1000000 + 60) || '}}' END,
  CASE WHEN n % 3 = 0 THEN since - 600000000 END, 3, 50,
  CASE WHEN state IN ('MERGED', 'CLOSED') THEN since + 24 * {hour} END
FROM (
  SELECT n, CASE (n * 7919) % 10 {states} END AS state,
    CASE (n * 31) % {rule_count} {rules} END AS rule,
    CASE n % {library_count} {libraries} END AS library,
    {now} - (n * 104729) % (20 * {hour}) AS since FROM c)
"""
_REPOS = """
INSERT INTO towline_repos (repo, name, forge)
SELECT DISTINCT repo, substr(repo, 10), forge FROM towline_prs
"""
_TYPES = (
    "PR_OPENED", "CHECKS_STARTED", "CHECKS_FAILED", "REMEDIATION_REBUILD", "CHECKS_STARTED",
    "CHECKS_PASSED", "POLICY_EVALUATION_STARTED", "POLICY_PASSED", "APPROVAL_GRANTED",
    "MERGE_ATTEMPTED",
)  # fmt: skip
_EVENTS = """
INSERT INTO towline_pr_events (repo, number, id, key, event_type, source, at_us, payload)
{numbers}
SELECT p.repo, p.number, c.n, 'k' || c.n, CASE c.n % 10 {types} END, 'github-webhook',
  p.created_us + c.n * 60000000,
  '{{"sha":"0123456789abcdef","check":"build","conclusion":"failure","actor":"octocat"}}'
FROM towline_prs p CROSS JOIN c {only}
"""
_JOBS = """
INSERT INTO towline_jobs (id, queue, kind, repo, subject, priority, state, held, passengers,
  run_at_us, created_us, updated_us, finished_us, attempts, max_attempts, token, published_us,
  params, result, error, reason)
{numbers}
SELECT 'job_' || printf('%08d', n), 'towline', CASE n % 3 WHEN 0 THEN 'delivery' WHEN 1 THEN
  'command' ELSE 'fix' END, 'octo-org/app-' || (n % {repos}), NULL, 0, state, 0, 0, at, at, at,
  CASE WHEN state = 'queued' THEN NULL ELSE at + 1000000 END, 1, 3, n, at, '{{"n":' || n || '}}',
  '{{"ok":true}}', CASE state WHEN 'dead' THEN 'it broke' END, NULL
FROM (SELECT n, CASE n % 100 WHEN 0 THEN 'dead' WHEN 1 THEN 'queued' ELSE 'done' END AS state,
  {now} - ({count} - n) * 400000 AS at FROM c)
"""
_DELIVERIES = """
INSERT INTO towline_deliveries (delivery_id, key, source, event_name, repo, body, job_id,
  throttled, copies, received_us, last_seen_us)
{numbers}
SELECT lower(hex(randomblob(16))), 'github:' || n, CASE n % 20 WHEN 0 THEN 'jenkins' ELSE 'github'
  END, CASE n % 4 WHEN 0 THEN 'check_run' WHEN 1 THEN 'pull_request' ELSE 'status' END,
  'octo-org/app-' || (n % {repos}), randomblob(800), 'job_' || printf('%08d', n), 0, 1,
  {now} - ({count} - n) * 400000, {now} FROM c
"""
_RUNS = """
INSERT INTO towline_runs (run_key, event_id, run_id, subject, repo, errand, state, attempt_count,
  blocked_reason, branch, created_us, updated_us, token)
{numbers}
SELECT printf('%032x', n), 'event ' || n, 'run_' || printf('%016x', n), 'subject ' || n,
  'octo-org/app-' || (n % {repos}), '{errand}', CASE n % 5 WHEN 0 THEN 'blocked' ELSE 'done' END,
  1, CASE n % 5 WHEN 0 THEN 'a scan refused it' END, 'towline/fix-' || n, {now}, {now}, n FROM c
"""
_STAGES = """
INSERT INTO towline_run_stages (run_key, stage, attempt, outcome, input_digest, reason, output,
  log, started_us, took_us)
SELECT r.run_key, s.name, 1, 'passed', 'd', '', '{{}}', hex(zeroblob(1000)), r.created_us, 3200000
FROM towline_runs r CROSS JOIN (SELECT 'PLAN' AS name UNION ALL SELECT 'PATCH' UNION ALL
  SELECT 'SAFETY' UNION ALL SELECT 'SCANS' UNION ALL SELECT 'VALIDATION') s
"""
_ERRAND = json.dumps(
    {"cause": "failure", "forge": "github", "repo": "octo-org/app-1", "base_ref": "main",
     "title": "Bump requests from 2.31.0 to 2.32.4", "check": "build"}
)  # fmt: skip


def fill(path: str, pulls: int, events: int) -> None:
    """`events` is how many all logs have together; lists of work are twice as long as the fleet."""
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA cache_size=-400000")
    db.execute("BEGIN")
    _run(db, _PULLS, pulls, states=_states(), rules=_cases(_RULES), rule_count=len(_RULES),
         libraries=_cases(_LIBRARIES), library_count=len(_LIBRARIES), facts=_FACTS,
         evidence="x" * 300)  # fmt: skip
    db.execute(_REPOS)
    _run(db, _EVENTS, max(1, events // pulls), types=_cases(_TYPES), only="")
    db.execute(
        "DELETE FROM towline_pr_events WHERE repo = ? AND number = ?", (LONG_REPO, LONG_NUMBER)
    )
    only = f"WHERE p.repo = '{LONG_REPO}' AND p.number = {LONG_NUMBER}"
    _run(db, _EVENTS, LONG_LOG, types=_cases(_TYPES), only=only)
    _run(db, _JOBS, 2 * pulls)
    _run(db, _DELIVERIES, 2 * pulls)
    _run(db, _RUNS, pulls // 5, errand=_ERRAND)
    db.execute(_STAGES.format())
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def _run(db: Any, statement: str, count: int, **values: object) -> None:
    numbers = _NUMBERS.format(count=count)
    db.execute(
        statement.format(
            numbers=numbers, count=count, repos=REPOS, hour=_HOUR_US,
            now=time.time_ns() // 1000, **values,
        )
    )  # fmt: skip


def _states() -> str:
    """By the last digit: three of ten merged, one closed, the others in any live state."""
    live = " ".join(f"WHEN {n} THEN '{state}'" for n, state in enumerate(_LIVE))
    other = f"CASE n % {len(_LIVE)} {live} END"
    ended = " ".join(f"WHEN {n} THEN 'MERGED'" for n in range(3))
    return f"{ended} WHEN 3 THEN 'CLOSED' ELSE {other}"


def _cases(values: tuple[str, ...]) -> str:
    return " ".join(f"WHEN {n} THEN '{value}'" for n, value in enumerate(values))
