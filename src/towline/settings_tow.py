"""Settings of the tow: which pull requests, how bots are recognised and poked, how patiently."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from towline.core.budgets import MAX_TRIES
from towline.core.signals import TriggerKind
from towline.core.staleness import THRESHOLD_SECONDS
from towline.settings_fix import RepoFixSettings
from towline.settings_values import (
    AppriseUrls,
    Count,
    HttpUrl,
    Name,
    Names,
    Regex,
    Regexes,
    RepoNames,
    Seconds,
    Share,
    Table,
    Words,
    list_of,
)

Tries = Annotated[int, Field(ge=0)]


class TowSettings(Table):
    """Which pull requests are towed: any of the first three will do; with none, nothing is."""

    authors: Words = ()
    branch_prefixes: Words = ()
    labels: Names = ()
    repos: RepoNames = ()
    """Repositories in which open ones are looked for, as their webhooks may have been lost."""
    vulnerability_pattern: Regex | None = None
    own_logins: Words = ()
    """Towline's own: what they write is no command, and what they push is no person's push."""


class BreakerSettings(Table):
    """When remediation pauses: a share of failures among so many actions in a window."""

    window_seconds: Seconds = 900
    threshold: Share = 0.5
    minimum: Count = 5
    cooldown_seconds: Seconds = 600


class ReconcilerSettings(Table):
    """The sweep over stale pull requests."""

    observe_only: bool = False
    every_seconds: Seconds = 300
    max_parallel: Count = 4
    batch_size: Annotated[int, Field(ge=1, le=100)] = 50
    max_stale_per_sweep: Count = 1000
    max_actions_per_sweep: Count = 50
    verify_seconds: Seconds = 300
    heal_unlisted: bool = False
    reopen_unknown: bool = True
    discover_seconds: Seconds = 3600
    breaker: BreakerSettings = BreakerSettings()


class StalenessSettings(Table):
    """How long a pull request may stay in a state, in seconds."""

    created: Seconds = THRESHOLD_SECONDS["CREATED"]
    checks_running: Seconds = THRESHOLD_SECONDS["CHECKS_RUNNING"]
    checks_passed: Seconds = THRESHOLD_SECONDS["CHECKS_PASSED"]
    checks_failed: Seconds = THRESHOLD_SECONDS["CHECKS_FAILED"]
    policy_evaluating: Seconds = THRESHOLD_SECONDS["POLICY_EVALUATING"]
    policy_passed: Seconds = THRESHOLD_SECONDS["POLICY_PASSED"]
    policy_failed: Seconds = THRESHOLD_SECONDS["POLICY_FAILED"]
    approved: Seconds = THRESHOLD_SECONDS["APPROVED"]
    merging: Seconds = THRESHOLD_SECONDS["MERGING"]


class BudgetSettings(Table):
    """How often each remedy may be tried; zero forbids it."""

    rebuild: Tries = MAX_TRIES["rebuild"]
    branch_update: Tries = MAX_TRIES["branch_update"]
    retrigger_policy_bot: Tries = MAX_TRIES["retrigger_policy_bot"]
    retrigger_approver_bot: Tries = MAX_TRIES["retrigger_approver_bot"]
    retrigger_automerge_bot: Tries = MAX_TRIES["retrigger_automerge_bot"]
    retrigger_sod_check: Tries = MAX_TRIES["retrigger_sod_check"]
    close_and_reopen: Tries = MAX_TRIES["close_and_reopen"]


class SignalSettings(Table):
    """One way to recognise an outcome; all that is given must hold."""

    label: Name | None = None
    review_by: Name | None = None
    comment_by: Name | None = None
    pattern: Regex | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.label or self.review_by or self.comment_by):
            raise ValueError("a signal needs label, review_by or comment_by")
        if self.pattern is not None and self.comment_by is None:
            raise ValueError("pattern reads a comment, so it needs comment_by")
        return self


OutcomeSignals = Annotated[tuple[SignalSettings, ...], BeforeValidator(list_of)]


class SignalsSettings(Table):
    """How outcomes are recognised."""

    required: Names = ()
    ignored: Names = ()
    policy_checks: Names = ("policy-bot*",)
    policy_started: OutcomeSignals = ()
    policy_passed: OutcomeSignals = ()
    policy_failed: OutcomeSignals = ()
    approved: OutcomeSignals = (SignalSettings(review_by="*"),)
    merging: OutcomeSignals = ()
    merge_failed: OutcomeSignals = ()
    sod: Regex | None = None
    build: Regex | None = None
    protection: Regex | None = None


TRIGGER_FIELDS: Final[dict[TriggerKind, str]] = {
    "jenkins": "job",
    "label": "label",
    "comment": "text",
    "status": "context",
    "dispatch": "event_type",
    "http": "url",
}
"""What a kind of trigger needs; the other kinds need nothing."""


class TriggerSettings(Table):
    """How to poke somebody."""

    kind: TriggerKind
    job: Name | None = None
    label: Name | None = None
    text: Name | None = None
    context: Name | None = None
    event_type: Name | None = None
    url: Annotated[HttpUrl | None, Field(repr=False)] = None

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        needed = TRIGGER_FIELDS.get(self.kind)
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"kind {self.kind} needs {needed}")
        if self.url is not None and "{" in urlsplit(self.url).netloc:
            raise ValueError("{…} is filled in only after the host of url")
        given = sorted(self.model_fields_set - {"kind", needed})
        if given:
            takes = f"{needed} alone" if needed else "nothing"
            raise ValueError(f"kind {self.kind} has no {given[0]}; it takes {takes}")
        return self

    @property
    def host(self) -> str | None:
        return urlsplit(self.url).hostname if self.url is not None else None


class RepoTriggersSettings(Table):
    """How each of them is poked; what is not given is as for all repositories."""

    rebuild: TriggerSettings | None = None
    policy: TriggerSettings | None = None
    sod: TriggerSettings | None = None
    approver: TriggerSettings | None = None
    merge: TriggerSettings | None = None

    def given(self) -> dict[str, TriggerSettings]:
        poked = ((name, getattr(self, name)) for name in RepoTriggersSettings.model_fields)
        return {name: trigger for name, trigger in poked if trigger is not None}


class TriggersSettings(RepoTriggersSettings):
    """How each of them is poked, and which hosts an http trigger may call."""

    allowed_hosts: Words = ()


class NotifySettings(Table):
    """Who is told of escalations and open breakers, as apprise addresses; they hold secrets."""

    urls: Annotated[AppriseUrls, Field(repr=False)] = ()


class CommandSettings(Table):
    """Slash commands of people."""

    rate_per_minute: Count = 10
    permission: Literal["read", "triage", "write", "maintain", "admin"] = "write"


class FailurePatternSettings(Table):
    """Your own regular expressions on CI logs, asked before the built-in ones."""

    transient: Regexes = ()
    persistent: Regexes = ()


class RepoSettings(Table):
    """What is different for one repository."""

    observe_only: bool | None = None
    staleness: StalenessSettings | None = None
    budgets: BudgetSettings | None = None
    signals: SignalsSettings | None = None
    triggers: RepoTriggersSettings | None = None
    fix: RepoFixSettings | None = None
