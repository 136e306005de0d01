"""What is said, and in which words, where there are no credentials for a forge."""

from __future__ import annotations

from collections.abc import Mapping

from towline.core.commands import Command, needs_forge
from towline.core.forges import FORGES, title_of
from towline.errors import Conflict
from towline.ports.forge import Forge


class NoCredentials(Conflict):
    """The command needs a forge that this service has no token for."""


def no_credentials(forge: str) -> str:
    """For a person: what is missing, and which setting it goes into."""
    setting = FORGES[forge].credentials if forge in FORGES else f"{forge}.token"
    return f"there is no token for {title_of(forge)}; set {setting}"


def lacking(command: Command, forge: str, forges: Mapping[str, Forge]) -> str | None:
    """Why a command cannot be carried out at this forge; None if it can."""
    if forge in forges or not needs_forge(command):
        return None
    return f"{command} cannot be carried out: {no_credentials(forge)}"
