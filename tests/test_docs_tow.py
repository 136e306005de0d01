"""The pages on the tow say what the tables of the code say."""

from __future__ import annotations

import re
from pathlib import Path

from towline import config
from towline.config.tow import TRIGGER_FIELDS
from towline.reconciler.rules import RULES, STRATEGY_OF, Case, classify

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), flags=re.DOTALL)


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


def test_every_variable_of_the_examples_loads() -> None:
    """The lines for a shell are accepted, too."""
    lines = [line for text in blocks("reference/settings.md", "sh") for line in text.splitlines()]
    variables = dict(line.split("=", 1) for line in lines)
    assert variables
    config.load(environment={name: text.strip("'") for name, text in variables.items()})


def test_every_kind_of_trigger_has_its_line() -> None:
    """With what it needs."""
    for kind, needed in TRIGGER_FIELDS.items():
        assert f'| `"{kind}"` | `{needed}` |' in page("reference/settings.md")
