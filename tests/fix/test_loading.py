"""Fixers are found by their entry points; a broken one costs one line."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from towline.fix.fixers import GROUP, load_fixers
from towline.fix.fixers.base import Fixer
from towline.fix.fixers.config import FixerConfig


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=GROUP)


class Mine:
    name = "mine"

    def fits(self, errand: object, log: str) -> str | None:
        return None

    async def fix(self, plan: object, workspace: object, sandbox: object) -> None: ...


def mine(config: FixerConfig) -> Mine:
    return Mine()


def nothing(config: FixerConfig) -> str:
    return "not a fixer"


def breaks(config: FixerConfig) -> Fixer:
    raise RuntimeError("two\nlines")


def test_ours_are_installed_and_come_in_the_order_asked_for() -> None:
    """As the package declares them."""
    fixers = load_fixers(["bump", "ruff", "bump"], FixerConfig())
    assert [(name, fixer.name) for name, fixer in fixers.items()] == [
        ("bump", "bump"),
        ("ruff", "ruff"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mine", f"{__name__}:absent", "the fixer mine is left out: AttributeError"),
        ("mine", "no.such.module:build", "the fixer mine is left out: ModuleNotFoundError"),
        ("mine", f"{__name__}:breaks", "the fixer mine is left out: RuntimeError: two lines"),
        ("mine", f"{__name__}:nothing", "does not return a fixer"),
        ("other", f"{__name__}:mine", "the fixer mine is left out: no package"),
    ],
)
def test_a_broken_one_is_left_out_with_one_line(
    name: str, value: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others work on."""
    ours = point("ruff", "towline.fix.fixers.ruff:build")
    fixers = load_fixers(["mine", "ruff"], FixerConfig(), [point(name, value), ours])
    assert list(fixers) == ["ruff"]
    (record,) = caplog.records
    assert said in record.getMessage()
    assert "\n" not in record.getMessage()


def test_what_is_not_configured_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is that of the fixer itself."""
    assert load_fixers(["command", "llm"], FixerConfig()) == {}
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "no command is configured for it",
        "no model is configured for it",
    ]


def test_nobody_replaces_one_of_ours() -> None:
    """A plug-in of the same name is not taken."""
    points = [point("ruff", f"{__name__}:mine"), point("ruff", "towline.fix.fixers.ruff:build")]
    fixers = load_fixers(["ruff"], FixerConfig(), points)
    assert fixers["ruff"].name == "ruff"
    other = load_fixers(["mine"], FixerConfig(), [point("mine", f"{__name__}:mine")])
    assert list(other) == ["mine"]
