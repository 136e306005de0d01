"""The words in which forges and CI systems tell how a check stands, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from towline.core.events import CheckStatus, Conclusion


class Outcome(NamedTuple):
    status: CheckStatus
    conclusion: Conclusion


QUEUED: Final = Outcome("queued", "pending")
RUNNING: Final = Outcome("in_progress", "pending")
UNKNOWN: Final = Outcome("completed", "action_required")
"""An end in a word that is not known: surely not a pass, so a person should look."""

_ENDED: Final[Mapping[Conclusion, str]] = {
    "success": "success succeeded successful passed pass ok fixed",
    "failure": "failure failed fail error errored broken unstable",
    "cancelled": "cancelled canceled aborted stopped",
    "timed_out": "timed_out timedout timeout",
    "skipped": "skipped not_built not_run",
    "neutral": "neutral",
    "action_required": "action_required manual blocked",
    "stale": "stale",
    "startup_failure": "startup_failure infrastructure_fail",
}
_QUEUED: Final = (
    "queued created requested waiting waiting_for_resource waiting_for_callback preparing pending"
    " scheduled enqueued"
)
_RUNNING: Final = "in_progress running started building canceling"

WORDS: Final[Mapping[str, Outcome]] = {
    **{word: Outcome("completed", end) for end, words in _ENDED.items() for word in words.split()},
    **dict.fromkeys(_QUEUED.split(), QUEUED),
    **dict.fromkeys(_RUNNING.split(), RUNNING),
}


def outcome_of(word: str) -> Outcome:
    return WORDS.get(word.lower().replace("-", "_").replace(" ", "_"), UNKNOWN)


def outcome_of_two(status: str | None, conclusion: str | None) -> Outcome:
    """Of a sender who has one word for how far it is, and another for how it ended."""
    if status is None or status == "completed":
        return outcome_of(conclusion) if conclusion else RUNNING
    known = outcome_of(status)
    return known if known.conclusion == "pending" else RUNNING
