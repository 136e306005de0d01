"""What is known of a pull request from the outside: told by events, or seen by looking at it.

Both are read by the same rules, and the newest word on each thing counts, in whatever order the
words came. Facts are about one head commit: another one starts them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from towline.core.events import CheckStatus, Conclusion, PullRequestState

Verdict: TypeAlias = Literal["none", "running", "passed", "failed"]
"""Of all required checks together, or of the policy bot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFact:
    """The newest word on one check of the head commit."""

    status: CheckStatus
    conclusion: Conclusion
    at: float | None = None
    attempt: int | None = None
    run_id: str | None = None
    suite_id: str | None = None
    job_id: str | None = None
    app: str | None = None
    kind: str = "check_run"
    summary: str = ""
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    condition: PullRequestState = "open"
    head_sha: str | None = None
    checks: Mapping[str, CheckFact] = field(default_factory=dict)
    """CI's, by name."""
    policy: Verdict = "none"
    policy_substatus: str | None = None
    policy_says: str = ""
    approved_by: tuple[str, ...] = ()
    merging: bool = False
    labels: tuple[str, ...] = ()
    conflicts: bool | None = None
    behind: bool | None = None
    transient: bool | None = None
    """Whether the failure of its checks may pass by itself; None while nobody has looked."""
    evidence: str = ""
    """The line that shows it."""
