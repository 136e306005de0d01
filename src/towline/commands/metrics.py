"""Counts commands."""

from __future__ import annotations

from prometheus_client import Counter

COMMANDS = Counter("towline_commands", "Commands by what came of them", ["command", "outcome"])
