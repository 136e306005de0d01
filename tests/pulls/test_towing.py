"""Which pull requests are towed, what they fix, and whose push is a person's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.pulls.pull_words import BOT, PERSON, pull
from towline.events import Actor
from towline.pulls.selection import is_person, is_towed, same_login, vulnerability_of
from towline.pulls.signals import Towing

TOWING = Towing(
    authors=frozenset({"dependabot[bot]"}),
    branch_prefixes=("towline/", ""),
    labels=frozenset({"tow"}),
)


@pytest.mark.parametrize(
    ("fields", "towed"),
    [
        ({"author": BOT, "head_ref": "x"}, True),
        ({"author": Actor("Dependabot[bot]"), "head_ref": "x"}, True),
        ({"author": Actor("dependabot", "bot"), "head_ref": "x"}, True),
        ({"author": Actor("dependabot", "user"), "head_ref": "x"}, False),
        ({"author": PERSON, "head_ref": "towline/fix"}, True),
        ({"author": PERSON, "head_ref": "fix/towline/"}, False),
        ({"author": PERSON, "head_ref": "x", "labels": ("bug", "tow")}, True),
        ({"author": None, "head_ref": None}, False),
        ({"author": BOT, "head_ref": "x", "draft": True}, True),
    ],
)
def test_author_branch_or_label(fields: dict[str, Any], towed: bool) -> None:
    """Any of them is enough, a draft is towed too, and an empty prefix is none."""
    assert is_towed(pull(**fields), TOWING) is towed


def test_without_configuration_nothing_is_towed() -> None:
    """Silence is not consent."""
    assert not is_towed(pull(labels=("tow",)), Towing())


@pytest.mark.parametrize(
    ("fields", "body", "found"),
    [
        ({"head_ref": "fix/cve-2024-12345-lib", "title": "CVE-2023-0001"}, "", "CVE-2024-12345"),
        ({"head_ref": "fix", "title": "Fix CVE-2023-0001"}, "CVE-2020-1111", "CVE-2023-0001"),
        ({"head_ref": "fix", "labels": ("cve-2022-2222",)}, "", "CVE-2022-2222"),
        ({"head_ref": "fix"}, "see GHSA-JFH8-C2JP-5V3Q.", "GHSA-jfh8-c2jp-5v3q"),
        ({"head_ref": "fix"}, "nothing", None),
    ],
)
def test_the_id_of_what_it_fixes(fields: dict[str, Any], body: str, found: str | None) -> None:
    """From branch, title, labels or body, in that order, in its published spelling."""
    assert vulnerability_of(pull(**{"title": "Bump", **fields}), TOWING, body) == found


def test_a_pattern_of_ones_own() -> None:
    """Its first group is the id, or else all that it finds; the spelling is kept."""
    grouped = Towing(vulnerability=re.compile(r"vuln-(\w+)"))
    whole = Towing(vulnerability=re.compile(r"SNYK-\w+"))
    assert vulnerability_of(pull(head_ref="fix/vuln-Ab12"), grouped) == "Ab12"
    assert vulnerability_of(pull(head_ref="SNYK-JS9"), whole) == "SNYK-JS9"


@pytest.mark.parametrize(
    ("actor", "person"),
    [
        (PERSON, True),
        (Actor("octocat"), True),
        (BOT, False),
        (Actor("renovate[bot]"), False),
        (Actor("Towline-Machine", "user"), False),
        (None, False),
    ],
)
def test_who_is_a_person(actor: Actor | None, person: bool) -> None:
    """Neither a bot, nor one of our own logins, nor nobody."""
    assert is_person(actor, {"towline-machine"}) is person


def test_a_bots_bare_name_is_not_up_for_grabs() -> None:
    """A user who registers it is not the bot."""
    assert same_login("approver[bot]", Actor("approver", "bot"))
    assert not same_login("approver[bot]", Actor("approver", "user"))
    assert not same_login("approver[bot]", Actor("approver"))
