"""What a page says after a form was taken; the address carries only the note's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOTES: Final[Mapping[str, str]] = {
    "ordered": "The command is queued. Its outcome appears in the log below.",
    "reset": "The breaker is closed. Remediation goes on.",
    "redelivered": "The job is queued again.",
    "unblocked": "The run is unblocked and queued, with fresh attempts.",
    "signed-out": "You are signed out.",
    "session-ended": "The session has ended. Its browser has to sign in again.",
    "sessions-ended": "All other sessions of your key have ended.",
    "demo": "Done. Watch the fleet: the tow reacts by itself.",
}
