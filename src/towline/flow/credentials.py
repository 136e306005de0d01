"""What is said, and in which words, where there are no credentials for a forge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from towline.core.commands import Command, needs_forge
from towline.errors import Conflict
from towline.ports.forge import Forge

_FORGES: Final = {
    "github": ("GitHub", "github.token (TOWLINE_GITHUB__TOKEN) or a GitHub App"),
    "gitlab": ("GitLab", "gitlab.token (TOWLINE_GITLAB__TOKEN)"),
}


class NoCredentials(Conflict):
    """The command needs a forge that this service has no token for."""


def no_credentials(forge: str) -> str:
    """For a person: what is missing, and which setting it goes into."""
    name, setting = _FORGES.get(forge, (forge, f"{forge}.token"))
    return f"there is no token for {name}; set {setting}"


def lacking(command: Command, forge: str, forges: Mapping[str, Forge]) -> str | None:
    """Why a command cannot be carried out at this forge; None if it can."""
    if forge in forges or not needs_forge(command):
        return None
    return f"{command} cannot be carried out: {no_credentials(forge)}"
