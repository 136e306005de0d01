"""What a fix says of itself: the commit's message, and the pull request's title and body.

What comes from a log, a fixer or a person stands in fences or code, so that it mentions nobody,
closes nothing and hides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from towline.core.fixrun import Errand, RunRecord, Stage

LONGEST_TITLE: Final = 120
LONGEST_BODY: Final = 30_000
_MOST_EVIDENCE: Final = 4_000
_MOST_SUMMARY: Final = 2_000
_MOST_FILES: Final = 50
_BACKTICKS: Final = re.compile(r"`{3,}")
_PLAIN_URL: Final = re.compile(r"https?://[!-;=?-_a-z{-~]+")
_FILE: Final = re.compile(r"^diff --git a/(?:.*) b/(.*)$", re.MULTILINE)


def title_of(errand: Errand, proposed: str) -> str:
    """The fixer's, if it has one; what is vulnerable is named in any case."""
    title = _one_line(proposed) or _one_line(errand.title) or f"Fix {errand.repo}"
    known = _one_line(errand.vulnerability_id or "")
    if known and known not in title:
        title = f"{title[: LONGEST_TITLE - len(known) - 3]} ({known})"
    return title[:LONGEST_TITLE]


def commit_message(run: RunRecord, errand: Errand, title: str, summary: str) -> str:
    """The same for the same run and patch, so that the commit is the same, too."""
    parts = [title]
    if summary.strip():
        parts.append(_plain(summary)[:_MOST_SUMMARY])
    trailers = [f"Towline-Run: {run.run_id}"]
    if errand.vulnerability_id:
        trailers.append(f"Fixes-Vulnerability: {_one_line(errand.vulnerability_id)}")
    return "\n\n".join([*parts, "\n".join(trailers)]) + "\n"


def body_of(
    run: RunRecord, errand: Errand, outputs: Mapping[Stage, Mapping[str, object]], checks: str
) -> str:
    """Why, what, the evidence, and how it was validated."""
    plan, patch = outputs.get("PLAN", {}), outputs.get("PATCH", {})
    parts = [
        "## Why",
        _code(_text(plan, "cause")),
        *_sources(errand),
        "## What was changed",
        _code(_text(patch, "summary") or "see the diff"),
        f"By the fixer `{_one_line(_text(plan, 'fixer'))}`: {_code(_text(plan, 'why'))}",
        *_files(_text(patch, "diff")),
    ]
    if log := _text(plan, "log").strip():
        parts += ["## Evidence", _fenced(log[-_MOST_EVIDENCE:])]
    parts += ["## Checks before this was opened", checks]
    parts.append(f"Run `{run.run_id}`, attempt {run.attempt_count}. Towline does not merge it.")
    return "\n\n".join(parts)[:LONGEST_BODY]


def checks_of(run: RunRecord) -> str:
    """A line for each stage between the patch and the pull request."""
    wanted = ("SAFETY", "SCANS", "VALIDATION")
    lines = [
        f"- {one.stage}: {one.outcome}" + (f", {_code(one.reason)}" if one.reason else "")
        for one in run.stages
        if one.stage in wanted
    ]
    return "\n".join(lines) or "- none are configured"


def _sources(errand: Errand) -> list[str]:
    lines = []
    if errand.url:
        plain = _PLAIN_URL.fullmatch(errand.url)
        lines.append(f"- seen at <{errand.url}>" if plain else f"- seen at {_code(errand.url)}")
    if errand.sha:
        lines.append(f"- commit {errand.sha}")
    if errand.vulnerability_id:
        lines.append(f"- vulnerability {_one_line(errand.vulnerability_id)}")
    if issue := errand.more.get("issue"):
        lines.append(f"- issue {_one_line(issue)}")
    if errand.replaces is not None:
        lines.append(f"- replaces #{errand.replaces}")
    if errand.requested_by:
        lines.append(f"- asked for by `{_one_line(errand.requested_by)}`")
    if errand.instruction and errand.instruction != errand.title:
        lines.append("- in these words:\n\n" + _fenced(errand.instruction[:_MOST_SUMMARY]))
    return ["\n".join(lines)] if lines else []


def _files(diff: str) -> list[str]:
    names = list(dict.fromkeys(_FILE.findall(diff)))
    if not names:
        return []
    shown = [f"- {_code(name)}" for name in names[:_MOST_FILES]]
    if len(names) > _MOST_FILES:
        shown.append(f"- and {len(names) - _MOST_FILES} more")
    return ["\n".join(shown)]


def _fenced(text: str) -> str:
    """In a fence that nothing within can end."""
    text = _plain(text)
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _code(text: str) -> str:
    line = _one_line(text).replace("`", "'")
    return f"`{line[:_MOST_SUMMARY]}`" if line else ""


def _one_line(text: str) -> str:
    return " ".join(_plain(text).split())


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def _text(output: Mapping[str, object], name: str) -> str:
    value = output.get(name)
    return value if isinstance(value, str) else ""
