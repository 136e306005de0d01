"""The forges that Towline knows. This is the only list of them.

A new forge is a module (or folder) in `forges` with a function `connect`, its settings, its
webhooks, and one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class ForgeKind(NamedTuple):
    title: str
    """Its name in texts for people."""
    api_url: str
    """The API of the public instance."""
    credentials: str
    """The settings that open it, for messages."""
    module: str
    """Has `connect(settings, clock, app)`, and `polled(settings, repos, clock, app)`, whose places
    to read stand in the setting `polling.NAME`. It is loaded only where it is needed."""
    has_apps: bool = False
    """Whether an App may stand in for a token."""


FORGES: Final[Mapping[str, ForgeKind]] = {
    "github": ForgeKind(
        "GitHub",
        "https://api.github.com",
        "github.token (TOWLINE_GITHUB__TOKEN) or a GitHub App",
        "towline.forges.github.forge",
        has_apps=True,
    ),
    "gitlab": ForgeKind(
        "GitLab",
        "https://gitlab.com/api/v4",
        "gitlab.token (TOWLINE_GITLAB__TOKEN)",
        "towline.forges.gitlab.forge",
    ),
}


def title_of(forge: str) -> str:
    return FORGES[forge].title if forge in FORGES else forge
