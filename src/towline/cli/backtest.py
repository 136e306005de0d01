"""`towline backtest`: the recorded history under another policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from towline.cli import waiting
from towline.cli.history import Repo, Since, opened_history, repo_named, since_us
from towline.cli.prs import Config, Json, print_json
from towline.errors import Rejected

if TYPE_CHECKING:
    from towline.core.backtest import Comparison
    from towline.core.sweep_policy import RepoPolicy, TowPolicy
    from towline.flow.backtest import Ruling

_Policy = Annotated[
    Path,
    typer.Option(
        "--policy", help="A towline.toml; its staleness, budgets, reconciler and repo tables count."
    ),
]
_All = Annotated[bool, typer.Option("--all", help="Show every pull request that differs.")]


class Tested(NamedTuple):
    comparison: Comparison
    before: Ruling
    after: Ruling
    changes: list[str]


def register(app: typer.Typer) -> None:
    app.command("backtest")(backtest)


def backtest(
    policy: _Policy,
    since: Since = None,
    repo: Repo = None,
    all_: _All = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Replay the recorded history under other thresholds and budgets, and show what differs."""
    if not policy.is_file():
        raise Rejected(f"there is no file {policy}")
    tested = waiting.run("Replaying the history", _tested(policy, since, repo, config))
    from towline.cli.backtest_texts import as_json, show

    if json:
        print_json(as_json(tested.comparison, tested.changes))
        return
    show(tested.comparison, tested.changes, every=all_)


async def _tested(file: Path, since: str | None, repo: str | None, config: Path | None) -> Tested:
    from towline import settings
    from towline.flow.backtest import Ruling, Wanted, compared
    from towline.settings_policy import policy_of

    loaded = settings.load(config)
    other = with_policy(loaded, settings.load(file, {}))
    before = Ruling(policy_of(loaded), loaded.reconciler.every_seconds)
    after = Ruling(policy_of(other), other.reconciler.every_seconds)
    async with opened_history(loaded) as (pulls, now_us):
        wanted = Wanted(await repo_named(pulls, repo), since_us(since, now_us))
        comparison = await compared(pulls, before, after, wanted)
    if not comparison.pulls and not comparison.unread:
        raise Rejected("there is no history to replay")
    return Tested(comparison, before, after, changes(before, after))


def with_policy(settings: Any, given: Any) -> Any:
    """The settings with what a policy file gives laid over them; what it does not give stays."""
    names = given.model_fields_set & {"staleness", "budgets", "reconciler"}
    update = {name: _over(getattr(settings, name), getattr(given, name)) for name in names}
    repos = dict(settings.repo)
    for name, repo in given.repo.items():
        repos[name] = _over(repos[name], repo) if name in repos else repo
    return settings.model_copy(update={**update, "repo": repos})


def _over(general: Any, own: Any) -> Any:
    """Table by table."""
    update: dict[str, Any] = {}
    for name in own.model_fields_set:
        value, known = getattr(own, name), getattr(general, name)
        nested = hasattr(value, "model_fields_set") and hasattr(known, "model_fields_set")
        update[name] = _over(known, value) if nested else value
    copied = general.model_copy(update=update)
    copied.model_fields_set.update(own.model_fields_set)
    return copied


def changes(before: Ruling, after: Ruling) -> list[str]:
    """What the other policy has different, as far as a replay can tell."""
    found = _changed("", _knobs(before.policy.general), _knobs(after.policy.general))
    names = sorted({*before.policy.repos, *after.policy.repos})
    for name in names:
        old, new = _knobs(before.policy.of(name)), _knobs(after.policy.of(name))
        found += _changed(f'repo."{name}".', old, new)
    old_sweep = {**_sweep(before.policy), "every_seconds": before.every_seconds}
    new_sweep = {**_sweep(after.policy), "every_seconds": after.every_seconds}
    return found + _changed("reconciler.", old_sweep, new_sweep)


def _knobs(policy: RepoPolicy) -> dict[str, object]:
    return {
        **{f"staleness.{state.lower()}": value for state, value in policy.thresholds.items()},
        **{f"budgets.{strategy}": value for strategy, value in policy.budgets.items()},
        "observe_only": policy.observe_only,
    }


def _sweep(policy: TowPolicy) -> dict[str, object]:
    return {"heal_unlisted": policy.heal_unlisted, "verify_seconds": policy.verify_seconds}


def _changed(prefix: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    return [
        f"{prefix}{name}: {_shown(old[name])} → {_shown(new[name])}"
        for name in old
        if old[name] != new[name]
    ]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
