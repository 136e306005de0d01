"""Whether Towline knows which checks must pass, where pull requests are towed."""

from __future__ import annotations

from towline.app.policy import policy_of
from towline.config import Settings
from towline.doctor.findings import Finding, judge_required

CHECK = "signals"


def look_at_signals(settings: Settings) -> list[Finding]:
    """The default of all repositories, and each that has signals of its own."""
    tow, policy = settings.tow, policy_of(settings)
    if not (tow.authors or tow.branch_prefixes or tow.labels):
        return []
    without = sorted(repo for repo, own in policy.repos.items() if not own.signals.required)
    others = not tow.repos or any(repo not in policy.repos for repo in tow.repos)
    if others and not policy.general.signals.required:
        without = ["", *without]
    return judge_required(CHECK, without)
