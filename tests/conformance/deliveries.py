"""What the idempotency suites work on: one delivery, and handlers that count their runs."""

from __future__ import annotations

from typing import Any

from towline import keys

KEY = keys.GitHub(delivery_id="550e8400-e29b-41d4-a716-446655440000")
PAYLOAD = {"action": "opened", "number": 7, "pull": {"head": "abc"}}


class Handler:
    """Counts its runs and returns or raises what it was given, one after the other."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.runs = 0

    async def __call__(self) -> Any:
        self.runs += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
