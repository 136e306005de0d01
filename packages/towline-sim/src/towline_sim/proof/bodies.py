"""Who is at work on what, in the nodes that can be held to account for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import Node, current


class _Body:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.pauses = node.pauses


class Bodies:
    """Counts those at work at the same time; one in a node that slept since does not count.

    A node that sleeps cannot know that its time is up, and is stopped by its token.
    """

    def __init__(self, stage: Stage, limit: int = 1, grace: float = 11.0) -> None:
        """Who slept has so many seconds to find out what became of its work."""
        self._stage = stage
        self._limit = limit
        self._grace = grace
        self._at_work: dict[str, list[_Body]] = {}
        self.begun: dict[str, int] = {}

    def at_work_on(self, name: str) -> list[_Body]:
        return [one for one in self._at_work.get(name, []) if self._accountable(one)]

    def _check(self, body: _Body, name: str, others: list[_Body]) -> None:
        if len(others) >= self._limit and not self._stage.jumped:
            beside = ", ".join(str(one.node) for one in others)
            self._stage.violation(f"{body.node} works on {name} beside {beside}")

    def _accountable(self, body: _Body) -> bool:
        node, now = body.node, self._stage.loop.time()
        awake = node.pauses == body.pauses or now > node.paused_until + self._grace
        return node.alive and awake

    @contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        node = current.get()
        body = _Body(node)
        others = self.at_work_on(name)
        self.begun[name] = self.begun.get(name, 0) + 1
        self._at_work[name] = [*others, body]
        self._stage.tell(node, f"begins {name}")
        self._check(body, name, others)
        try:
            yield
        finally:
            if self._accountable(body):
                self._check(body, name, [one for one in self.at_work_on(name) if one is not body])
            if body in self._at_work[name]:
                self._at_work[name].remove(body)
            self._stage.tell(node, f"ends {name}")
