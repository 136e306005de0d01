"""Which pull requests are towed, which vulnerability they fix, and who is a person. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from towline.events import Actor, PullRequestChanged
from towline.pulls.signals import Towing

_BOT: Final = "[bot]"
_KNOWN_ID: Final = re.compile(r"(CVE)-[\d-]+|(GHSA)-[\w-]+", re.IGNORECASE)


def same_login(named: str, actor: Actor) -> bool:
    """Logins have no case. Some APIs leave out the `[bot]` that an app's login ends in.

    It is added only for what the forge says is a bot, so that no person can register its bare name.
    """
    login, wanted = actor.login.casefold(), named.casefold()
    if login == wanted:
        return True
    return actor.is_bot and not login.endswith(_BOT) and login + _BOT == wanted


def is_person(actor: Actor | None, ours: Collection[str] = ()) -> bool:
    """Neither a bot nor one of our own logins; an actor without a name is no person."""
    if actor is None or actor.is_bot or actor.login.casefold().endswith(_BOT):
        return False
    return not any(same_login(one, actor) for one in ours)


def is_towed(pull: PullRequestChanged, towing: Towing) -> bool:
    """By author, branch or label, any of them. A draft is towed as well: its checks run too."""
    author, branch = pull.author, pull.head_ref or ""
    if author is not None and any(same_login(login, author) for login in towing.authors):
        return True
    if any(prefix and branch.startswith(prefix) for prefix in towing.branch_prefixes):
        return True
    return not towing.labels.isdisjoint(pull.labels)


def vulnerability_of(pull: PullRequestChanged, towing: Towing, body: str = "") -> str | None:
    """The id of what it fixes, from its branch, title, labels or body; the first that has one."""
    return first_id(towing, (pull.head_ref or "", pull.title, *pull.labels, body))


def first_id(towing: Towing, texts: Iterable[str]) -> str | None:
    for text in texts:
        found = towing.vulnerability.search(text)
        if found is not None:
            return _as_published(found[1] if found.re.groups and found[1] else found[0])
    return None


def _as_published(found: str) -> str:
    """One id has one spelling, as it is compared: `cve-2024-1` in a branch is `CVE-2024-1`."""
    known = _KNOWN_ID.fullmatch(found)
    if known is None:
        return found
    return found.upper() if known[1] else f"GHSA{found[4:].lower()}"
