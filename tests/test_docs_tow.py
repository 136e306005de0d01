"""The pages on the tow say what the tables of the code say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from towline import settings
from towline.core.budgets import _RESET_BY, LIFETIME_FACTOR, MAX_TRIES, STRATEGIES
from towline.core.classify import RULES, STRATEGY_OF, Case, classify
from towline.core.commands import ALLOWED_IN, COMMANDS
from towline.core.lifecycle import STATES, TERMINAL, WAITING_FOR, diagram
from towline.core.staleness import THRESHOLD_SECONDS
from towline.settings_tow import TRIGGER_FIELDS

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), flags=re.DOTALL)


def test_the_diagram_is_the_tables() -> None:
    """The page shows what `lifecycle.diagram` draws."""
    assert blocks("reference/lifecycle.md", "mermaid") == [diagram()]


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_its_line(state: str) -> None:
    """With what it waits for and after how many minutes it is stale."""
    known = next(one for one in STATES if one == state)
    seconds = THRESHOLD_SECONDS.get(known)
    ended = "never: it has ended" if known in TERMINAL else "never"
    stale = ended if seconds is None else f"{seconds / 60:g} min"
    line = f"| `{known}` | {WAITING_FOR[known]} | {stale} |"
    assert line in page("reference/lifecycle.md")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_budget_has_its_line(strategy: str) -> None:
    """With its tries, the cap over a life, and what resets it."""
    known = next(one for one in STRATEGIES if one == strategy)
    resets = sorted(_RESET_BY[known], key=STATES.index)
    shown = ", ".join(f"`{state}`" for state in resets) or "nothing"
    most = MAX_TRIES[known]
    line = f"| `{known}` | {most} | {most * LIFETIME_FACTOR} | {shown} |"
    assert line in page("reference/lifecycle.md")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_line(command: str) -> None:
    """With a mark for each state that it is for."""
    known = next(one for one in COMMANDS if one == command)
    live = [state for state in STATES if state not in TERMINAL]
    line = next(
        text for text in page("reference/lifecycle.md").splitlines() if f"| `{known}` |" in text
    )
    cells = [cell.strip() for cell in line.strip("|").split("|")[1:]]
    assert cells == ["yes" if state in ALLOWED_IN[known] else "" for state in live]


def test_the_rules_stand_in_their_order() -> None:
    """All eleven, numbered, each with the action that it asks for."""
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \| .* \| `(\w+)` \|$", page("reference/lifecycle.md"), re.MULTILINE
    )
    assert [int(number) for number, _, _ in rows] == list(range(1, len(RULES) + 1))
    shown = {rule: action for _, rule, action in rows}
    case = Case(state="APPROVED", since=0.0, counts={}, lifetime={})
    found = classify(case, 1e9)
    assert shown[found.finding.rule] == found.action == "RETRIGGER_MERGE"
    assert set(shown.values()) == {*STRATEGY_OF, "NEEDS_INTERVENTION", "NO_ACTION"}


def test_every_example_of_settings_loads(tmp_path: Path) -> None:
    """Each TOML block of the settings page and of the guide is accepted as it stands."""
    shown = [
        *blocks("reference/settings.md", "toml"),
        *blocks("how-to/tow-pull-requests.md", "toml"),
    ]
    assert len(shown) > 4
    for text in shown:
        file = tmp_path / "towline.toml"
        needs = '[jenkins]\nurl = "https://ci.example"\n' if '"jenkins"' in text else ""
        file.write_text(text if "[jenkins]" in text else f"{text}\n{needs}", encoding="utf-8")
        settings.load(file, {})


def test_every_variable_of_the_examples_loads() -> None:
    """The lines for a shell are accepted, too."""
    lines = [line for text in blocks("reference/settings.md", "sh") for line in text.splitlines()]
    variables = dict(line.split("=", 1) for line in lines)
    assert variables
    settings.load(environment={name: text.strip("'") for name, text in variables.items()})


def test_every_kind_of_trigger_has_its_line() -> None:
    """With what it needs."""
    for kind, needed in TRIGGER_FIELDS.items():
        assert f'| `"{kind}"` | `{needed}` |' in page("reference/settings.md")


@pytest.mark.parametrize("table", ["staleness", "budgets"])
def test_the_numbers_of_the_settings_page(table: str) -> None:
    """Thresholds and budgets are shown with the defaults that hold."""
    for name, value in getattr(settings.Settings(), table).model_dump().items():
        assert f"| `{table}.{name}` | `{value:g}` |" in page("reference/settings.md")
