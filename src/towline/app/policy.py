"""Turns settings into the plain data that pure decisions take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel

from towline.config import Settings
from towline.config.fix import RepoFixSettings, ToolSettings
from towline.config.tow import (
    BudgetSettings,
    FailurePatternSettings,
    RepoSettings,
    RepoTriggersSettings,
    SignalsSettings,
    StalenessSettings,
    TriggerSettings,
)
from towline.fix.model import BANDIT, AllowedLine, Command, FixPolicy, FixRules, IssueRule
from towline.pulls.budgets import STRATEGIES, Counts
from towline.pulls.policy import RepoPolicy, TowPolicy
from towline.pulls.signals import (
    DEFAULT_TRIGGERS,
    OUTCOMES,
    POKED,
    Poked,
    Signal,
    Signals,
    Towing,
    Trigger,
)
from towline.pulls.staleness import THRESHOLD_SECONDS, Thresholds
from towline_once.coordination.circuit_breaker import Limits
from towline_once.failure_patterns import Pattern

T = TypeVar("T", bound=BaseModel)
_AS_IN_SETTINGS = (
    *("forge", "fixers", "allowed_paths", "forbidden_paths", "allow_workflows", "max_files"),
    *(
        "max_lines",
        "max_deleted_share",
        "executable_paths",
        "max_diff_bytes",
        "max_log_bytes",
        "base_branches",
        "checks",
        "on_pulls",
        "audit",
    ),
)
"""What a fix may be, named as in the settings."""


def policy_of(settings: Settings) -> TowPolicy:
    """How patiently and how often pull requests are helped, for all and for single repositories."""
    reconciler = settings.reconciler
    return TowPolicy(
        general=_general(settings),
        repos={name: _of_repo(settings, repo) for name, repo in settings.repo.items()},
        towing=towing_of(settings),
        own_logins=frozenset(settings.tow.own_logins),
        patterns=tuple(_patterns(settings.failure_patterns)),
        heal_unlisted=reconciler.heal_unlisted,
        reopen_unknown=reconciler.reopen_unknown,
        fixed=frozenset(settings.fix.repos),
        max_parallel=reconciler.max_parallel,
        batch_size=reconciler.batch_size,
        max_stale_per_sweep=reconciler.max_stale_per_sweep,
        max_actions_per_sweep=reconciler.max_actions_per_sweep,
        verify_seconds=reconciler.verify_seconds,
        command_rate_per_minute=settings.commands.rate_per_minute,
        command_permission=settings.commands.permission,
    )


def towing_of(settings: Settings) -> Towing:
    """Which pull requests are towed."""
    tow = settings.tow
    towing = Towing(
        authors=frozenset(tow.authors),
        branch_prefixes=tow.branch_prefixes,
        labels=frozenset(tow.labels),
    )
    pattern = tow.vulnerability_pattern
    return towing if pattern is None else replace(towing, vulnerability=pattern)


def breaker_limits_of(settings: Settings) -> Limits:
    """More actions than the minimum must have been made, as the specification words it."""
    breaker = settings.reconciler.breaker
    return Limits(
        int(breaker.window_seconds * 1e6),
        breaker.threshold,
        breaker.minimum + 1,
        int(breaker.cooldown_seconds * 1e6),
    )


def fix_rules_of(settings: Settings) -> FixRules:
    """Which repositories are fixed, by what, and who may ask for it."""
    fix = settings.fix
    return FixRules(
        repos={name: _fix_policy(settings, name) for name in fix.repos},
        command=fix.command,
        issues=tuple(
            IssueRule(
                project=issue.project,
                repo=issue.repo,
                labels=frozenset(issue.labels),
                statuses=frozenset(status.casefold() for status in issue.statuses),
            )
            for issue in fix.issues
        ),
        own_logins=frozenset(settings.tow.own_logins),
        permission=fix.permission,
    )


def _fix_policy(settings: Settings, repo: str) -> FixPolicy:
    own = settings.repo.get(repo)
    fix: RepoFixSettings = _over(settings.fix, own.fix if own is not None else None)
    scans = tuple(command_of(tool) for tool in fix.scans)
    return FixPolicy(
        **{name: getattr(fix, name) for name in _AS_IN_SETTINGS},
        allowed_secrets=tuple(AllowedLine(one.path, one.sha256) for one in fix.allowed_secrets),
        labels=fix.labels or settings.tow.labels[:1],
        scans=(BANDIT, *scans) if fix.bandit else scans,
        validation=None if fix.validation is None else command_of(fix.validation),
        max_attempts=settings.pipeline.max_attempts,
        cooldown_seconds=settings.pipeline.cooldown_seconds,
        patterns=tuple(_patterns(settings.failure_patterns)),
    )


def command_of(tool: ToolSettings) -> Command:
    return Command(
        name=tool.name or tool.argv[0],
        argv=tool.argv,
        seconds=tool.seconds,
        memory_bytes=tool.memory_mb * 1024**2,
        processes=tool.processes,
        network=tool.network,
    )


def _general(settings: Settings) -> RepoPolicy:
    return RepoPolicy(
        thresholds=_thresholds(settings.staleness),
        budgets=_budgets(settings.budgets),
        signals=_signals(settings.signals),
        triggers=_triggers(DEFAULT_TRIGGERS, settings.triggers),
        observe_only=settings.reconciler.observe_only,
    )


def _of_repo(settings: Settings, repo: RepoSettings) -> RepoPolicy:
    """What the repository gives, over what holds for all."""
    general = _general(settings)
    observe_only = repo.observe_only
    return RepoPolicy(
        thresholds=_thresholds(_over(settings.staleness, repo.staleness)),
        budgets=_budgets(_over(settings.budgets, repo.budgets)),
        signals=_signals(_over(settings.signals, repo.signals)),
        triggers=_triggers(general.triggers, repo.triggers or RepoTriggersSettings()),
        observe_only=general.observe_only if observe_only is None else observe_only,
    )


def _over(general: T, own: BaseModel | None) -> T:
    given = own.model_fields_set if own is not None else ()
    return general.model_copy(update={name: getattr(own, name) for name in given})


def _thresholds(staleness: StalenessSettings) -> Thresholds:
    return {state: getattr(staleness, state.lower()) for state in THRESHOLD_SECONDS}


def _budgets(budgets: BudgetSettings) -> Counts:
    return {strategy: getattr(budgets, strategy) for strategy in STRATEGIES}


def _signals(signals: SignalsSettings) -> Signals:
    outcomes = {
        outcome: tuple(Signal(**dict(signal)) for signal in getattr(signals, outcome))
        for outcome in OUTCOMES
        if getattr(signals, outcome)
    }
    words: dict[str, Any] = {
        name: pattern
        for name in ("sod", "build", "protection")
        if (pattern := getattr(signals, name)) is not None
    }
    return Signals(
        required=signals.required,
        ignored=signals.ignored,
        policy_checks=signals.policy_checks,
        outcomes=outcomes,
        **words,
    )


def _triggers(
    general: Mapping[Poked, Trigger], own: RepoTriggersSettings
) -> Mapping[Poked, Trigger]:
    given = own.given()
    return {poked: _trigger(given[poked]) if poked in given else general[poked] for poked in POKED}


def _trigger(trigger: TriggerSettings) -> Trigger:
    return Trigger(**{name: value for name, value in trigger if value is not None})


def _patterns(given: FailurePatternSettings) -> Iterable[Pattern]:
    """What is said to be persistent is asked first: not to try again does less harm."""
    for number, regex in enumerate(given.persistent):
        yield Pattern(f"settings:persistent[{number}]", "persistent", regex.pattern, "as set")
    for number, regex in enumerate(given.transient):
        yield Pattern(f"settings:transient[{number}]", "transient", regex.pattern, "as set")
