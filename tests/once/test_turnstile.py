"""The turnstile in front of a SQLite file: one at a time, and nobody twice before the others."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from towline_once.db.sqlite import Turnstile

PATIENCE = 20.0
A_MOMENT = 0.2


class Visitor:
    """A process as the files see it: a turnstile of its own, used on a thread of its own."""

    def __init__(self, path: str, name: str, log: list[str]) -> None:
        self._turnstile = Turnstile(path)
        self._name = name
        self._log = log
        self._leave = threading.Event()
        self.inside = threading.Event()
        self._thread = threading.Thread(target=self._visit, daemon=True)

    def _visit(self) -> None:
        with self._turnstile.turn():
            self._log.append(self._name)
            self.inside.set()
            self._leave.wait(PATIENCE)

    def come(self) -> None:
        self._thread.start()

    def go(self) -> None:
        self._leave.set()
        self._thread.join(PATIENCE)

    def close(self) -> None:
        self._leave.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)
        self._turnstile.close()


@pytest.fixture
def visitors(tmp_path: Path) -> Iterator[tuple[list[Visitor], list[str]]]:
    log: list[str] = []
    everybody = [Visitor(str(tmp_path / "towline.db"), name, log) for name in "abc"]
    yield everybody, log
    for visitor in everybody:
        visitor.close()


def test_one_is_inside_at_a_time(visitors: tuple[list[Visitor], list[str]]) -> None:
    """The second enters when the first has left."""
    (first, second, _), log = visitors
    first.come()
    assert first.inside.wait(PATIENCE)
    second.come()
    assert not second.inside.wait(A_MOMENT)
    first.go()
    assert second.inside.wait(PATIENCE)
    assert log == ["a", "b"]


def occupied(gate: Path) -> bool:
    """Whether somebody stands at the gate; a probe that gets in steps out again."""
    with gate.open() as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_who_has_had_its_turn_stands_behind_who_waits(tmp_path: Path) -> None:
    """Leaving and asking again at once does not overtake whoever has come to the gate."""
    path, turns = str(tmp_path / "towline.db"), 50
    log: list[str] = []

    def write(name: str) -> None:
        turnstile = Turnstile(path)
        for _ in range(turns):
            with turnstile.turn():
                log.append(name)
                while len(log) < 2 * turns - 1 and not occupied(tmp_path / "towline.db-gate"):
                    time.sleep(0.0005)
        turnstile.close()

    writers = [threading.Thread(target=write, args=(name,), daemon=True) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE)
    assert "".join(log) in ("ab" * turns, "ba" * turns)
