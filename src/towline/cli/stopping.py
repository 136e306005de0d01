"""A command that is stopped before it listens for the signal has nothing to finish."""

from __future__ import annotations

import signal
import sys


def end_at_once_when_stopped() -> None:
    """Exit with 0 on SIGTERM, until the command listens for the signal itself."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
