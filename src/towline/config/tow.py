"""Settings of the tow: which pull requests, how bots are recognised and poked, how patiently."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from towline.config.fix import RepoFixSettings
from towline.config.values import (
    MOST,
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
from towline.pulls.budgets import MAX_TRIES
from towline.pulls.signals import TriggerKind
from towline.pulls.staleness import THRESHOLD_SECONDS

Tries = Annotated[int, Field(ge=0, le=MOST)]


class TowSettings(Table):
    """Which pull requests are towed: any of the first three will do; with none, nothing is."""

    authors: Words = ()
    """Logins whose pull requests are towed."""
    branch_prefixes: Words = ()
    """Beginnings of head branches that are towed."""
    labels: Names = ()
    """Labels that are towed; with none of these three, nothing is."""
    repos: RepoNames = ()
    """Repositories in which open ones are looked for, as their webhooks may have been lost."""
    vulnerability_pattern: Regex | None = None
    """Finds what a pull request fixes in its branch, title, labels or body; the first group, else
    the match, is the id. CVE and GHSA ids if not given."""
    own_logins: Words = ()
    """Towline's own: what they write is no command, and what they push is no person's push."""


class BreakerSettings(Table):
    """When remediation pauses: a share of failures among so many actions in a window."""

    window_seconds: Seconds = 900
    """The time over which failures are counted."""
    threshold: Share = 0.5
    """Above this share of failures remediation pauses."""
    minimum: Count = 5
    """More actions than this in the window say something."""
    cooldown_seconds: Seconds = 600
    """The pause before one action may probe."""


class ReconcilerSettings(Table):
    """The sweep over stale pull requests."""

    observe_only: bool = False
    """Decide and log what would be done, and act on nothing."""
    every_seconds: Seconds = 300
    """How often stale pull requests are looked at."""
    max_parallel: Count = 4
    """How many are worked on at a time."""
    batch_size: Annotated[int, Field(ge=1, le=100)] = 50
    """How many are asked for in one call to the forge."""
    max_stale_per_sweep: Count = 1000
    """How many stale ones a sweep looks at; the rest waits for the next."""
    max_actions_per_sweep: Count = 50
    """How many remedies a sweep makes, so that a backlog is spread over time."""
    verify_seconds: Seconds = 300
    """How long the effect of a remedy may take to be seen."""
    heal_unlisted: bool = False
    """Try one rebuild or merge on a stale `CREATED`, `CHECKS_RUNNING` or `MERGING` before a person
    is asked."""
    reopen_unknown: bool = True
    """Close and open anew a conflicting one also if its vulnerability is not known."""
    discover_seconds: Seconds = 3600
    """How often `tow.repos` are searched."""
    breaker: BreakerSettings = BreakerSettings()


class StalenessSettings(Table):
    """How long a pull request may stay in a state, in seconds."""

    created: Seconds = THRESHOLD_SECONDS["CREATED"]
    """Without a check that has begun."""
    checks_running: Seconds = THRESHOLD_SECONDS["CHECKS_RUNNING"]
    """With checks that do not end."""
    checks_passed: Seconds = THRESHOLD_SECONDS["CHECKS_PASSED"]
    """With a policy bot that does not begin."""
    checks_failed: Seconds = THRESHOLD_SECONDS["CHECKS_FAILED"]
    """With failed checks."""
    policy_evaluating: Seconds = THRESHOLD_SECONDS["POLICY_EVALUATING"]
    """With a policy bot that does not end."""
    policy_passed: Seconds = THRESHOLD_SECONDS["POLICY_PASSED"]
    """Without an approval."""
    policy_failed: Seconds = THRESHOLD_SECONDS["POLICY_FAILED"]
    """With a refusal of the policy."""
    approved: Seconds = THRESHOLD_SECONDS["APPROVED"]
    """Without a merge that has begun."""
    merging: Seconds = THRESHOLD_SECONDS["MERGING"]
    """With a merge that does not end."""


class BudgetSettings(Table):
    """How often each remedy may be tried; zero forbids it."""

    rebuild: Tries = MAX_TRIES["rebuild"]
    """Building again."""
    branch_update: Tries = MAX_TRIES["branch_update"]
    """Bringing the branch up to its base."""
    retrigger_policy_bot: Tries = MAX_TRIES["retrigger_policy_bot"]
    """Waking the policy bot."""
    retrigger_approver_bot: Tries = MAX_TRIES["retrigger_approver_bot"]
    """Waking the approver."""
    retrigger_automerge_bot: Tries = MAX_TRIES["retrigger_automerge_bot"]
    """Waking the merger."""
    retrigger_sod_check: Tries = MAX_TRIES["retrigger_sod_check"]
    """Checking separation of duties again."""
    close_and_reopen: Tries = MAX_TRIES["close_and_reopen"]
    """Closing it and opening another one; counted for each vulnerability, over all its pull
    requests."""


class SignalSettings(Table):
    """One way to recognise an outcome; all that is given must hold."""

    label: Name | None = None
    """The pull request has this label."""
    review_by: Name | None = None
    """This login has approved it; `*` is anybody but its author."""
    comment_by: Name | None = None
    """This login has commented."""
    pattern: Regex | None = None
    """That comment has this regular expression in it."""

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
    """Checks that must pass, a `*` at the end stands for any rest; with none, all must."""
    ignored: Names = ()
    """Checks that do not count."""
    policy_checks: Names = ("policy-bot*",)
    """The policy bot's own checks: their states are its outcomes."""
    policy_started: OutcomeSignals = ()
    """Signals that the policy bot has begun; any of them will do."""
    policy_passed: OutcomeSignals = ()
    """Signals that it is content."""
    policy_failed: OutcomeSignals = ()
    """Signals that it is not."""
    approved: OutcomeSignals = (SignalSettings(review_by="*"),)
    """Signals that the pull request is approved."""
    merging: OutcomeSignals = ()
    """Signals that it is being merged."""
    merge_failed: OutcomeSignals = ()
    """Signals that the merge failed."""
    sod: Regex | None = None
    """In the policy bot's words: separation of duties is not met; `SOD` and the like if not
    given."""
    build: Regex | None = None
    """In the policy bot's words: the build is not well; `build`, `jenkins`, `CI` if not given."""
    protection: Regex | None = None
    """In the policy bot's words: branch protection is not met; that, and `protected branch`, if not
    given."""


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
    """How to trigger a bot or a CI."""

    kind: TriggerKind
    """What is done."""
    job: Name | None = None
    """The path of a Jenkins job, in which `{repo}`, `{owner}`, `{name}`, `{branch}` and `{number}`
    are filled in."""
    label: Name | None = None
    """The label that is taken off and put on."""
    text: Name | None = None
    """The comment."""
    context: Name | None = None
    """The commit status."""
    event_type: Name | None = None
    """The name of the `repository_dispatch`."""
    url: Annotated[HttpUrl | None, Field(repr=False)] = None
    """Where the POST goes."""

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
    """How CI is made to build again; `rerun_failed` if not given."""
    policy: TriggerSettings | None = None
    """How the policy bot is made to look again; `native` if not given."""
    sod: TriggerSettings | None = None
    """How separation of duties is checked again; `native` if not given."""
    approver: TriggerSettings | None = None
    """How the approver is woken; `native` if not given."""
    merge: TriggerSettings | None = None
    """How the merger is woken; `native` if not given."""

    def given(self) -> dict[str, TriggerSettings]:
        poked = ((name, getattr(self, name)) for name in RepoTriggersSettings.model_fields)
        return {name: trigger for name, trigger in poked if trigger is not None}


class TriggersSettings(RepoTriggersSettings):
    """How each of them is poked, and which hosts an http trigger may call."""

    allowed_hosts: Words = ()
    """The hosts that `http` triggers may call."""


class NotifySettings(Table):
    """Where escalations and open breakers are sent, as apprise addresses; they hold secrets."""

    urls: Annotated[AppriseUrls, Field(repr=False)] = ()
    """Where escalations and open breakers are sent, as apprise addresses (extra `notify`)."""


class CommandSettings(Table):
    """Slash commands of people."""

    rate_per_minute: Count = 10
    """Commands that are carried out at one bot; the rest waits its turn."""
    permission: Literal["read", "triage", "write", "maintain", "admin"] = "write"
    """What a person must be allowed at the forge to give one."""


class FailurePatternSettings(Table):
    """Your own regular expressions on CI logs, asked before the built-in ones."""

    transient: Regexes = ()
    """Your own regular expressions on CI logs: worth another run."""
    persistent: Regexes = ()
    """Not worth one; these are asked first, and both before the built-in rules."""


class RepoSettings(Table):
    """What is different for one repository."""

    observe_only: bool | None = None
    """As `reconciler.observe_only`, for this one."""
    staleness: StalenessSettings | None = None
    """A table like `[staleness]`, with what differs."""
    budgets: BudgetSettings | None = None
    """A table like `[budgets]`, with what differs."""
    signals: SignalsSettings | None = None
    """A table like `[signals]`, with what differs."""
    triggers: RepoTriggersSettings | None = None
    """Without `allowed_hosts`."""
    fix: RepoFixSettings | None = None
    """What a fix may be: all of `[fix]` but `repos`, `command`, `permission`, `issues`, `agent`,
    `llm` and how it runs."""
