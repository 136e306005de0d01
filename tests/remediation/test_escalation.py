"""What people are told: complete, on single lines, and unable to mention anybody."""

from __future__ import annotations

from towline.forges.snapshot import PullRef
from towline.pulls.budgets import none_used
from towline.pulls.facts import Facts
from towline.pulls.model import PullEvent, PullRecord
from towline.remediation.escalation_text import attempts_of, breaker_notice, escalation, why

RECORD = PullRecord(
    ref=PullRef("github", "octo-org/app", 7),
    url="https://forge.example/octo-org/app/pull/7",
    title="Fix @everyone `x`\nnow",
    author="dependabot[bot]",
    head_ref="fix/x",
    base_ref="main",
    head_sha="aa",
    vulnerability_id="CVE-2024-10001",
    state="NEEDS_INTERVENTION",
    substatus=None,
    since_us=0,
    created_us=0,
    updated_us=0,
    counts=none_used(),
    lifetime=none_used(),
    path=(),
    facts=Facts(),
    intent=None,
    last_remediation_us=None,
    remediation_action=None,
    diagnosis={
        "rule": "checks_persistent",
        "reason": "a real problem",
        "evidence": "assert 1 == 2",
        "next_action": "NEEDS_INTERVENTION",
        "budget_left": None,
    },
    replaces=None,
    replaced_by=None,
    expires_us=None,
    version=3,
)


def event(kind: str, at: int, **payload: object) -> PullEvent:
    return PullEvent(kind, "reconciler", at * 60_000_000, payload, f"{kind} {at}")


LOG = [
    event("PR_OPENED", 0),
    event("REMEDIATION_REBUILD", 1, intent="a", by="reconciler"),
    event("REMEDIATION_OUTCOME", 2, intent="a", outcome="done", detail="its effect was seen"),
    event("REMEDIATION_REBUILD", 3, intent="b", by="octocat"),
    event("ESCALATED_NEEDS_INTERVENTION", 4, reason="budget gone", **{"from": "CHECKS_FAILED"}),
]


def test_attempts_have_their_outcomes() -> None:
    """Also the one that nobody knows the outcome of."""
    assert [(one.by, one.outcome) for one in attempts_of(LOG)] == [
        ("reconciler", "done"),
        ("octocat", "not known yet"),
    ]


def test_a_notice_is_complete() -> None:
    """Every part that section 10 lists."""
    notice = escalation(RECORD, LOG)
    assert notice.title == "octo-org/app#7 needs a person: budget gone"
    for part in ("pull/7", "CVE-2024-10001", "CHECKS_FAILED", "budget gone", "by octocat"):
        assert part in notice.text
    assert "1970-01-01 00:04 ESCALATED_NEEDS_INTERVENTION" in notice.text


def test_other_peoples_words_stay_words() -> None:
    """A title mentions nobody, ends no code and adds no line."""
    title = next(x for x in escalation(RECORD, LOG).text.splitlines() if x.startswith("Title"))
    assert title == "Title: Fix @\u200beveryone 'x' now"


def test_why_has_the_diagnosis_and_a_short_timeline() -> None:
    """The newest events, and how many were left out."""
    many = [event("CHECKS_STARTED", n) for n in range(30)]
    text = why(RECORD, many)
    assert "checks_persistent" in text
    assert "assert 1 == 2" in text
    assert "(10 earlier)" in text


def test_the_breakers_words() -> None:
    """As section 15 has them."""
    assert breaker_notice("b", 0.667).title == "Circuit breaker tripped — 67% failure rate"
