"""Child processes that tests start, talk to by lines of JSON, stop and kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""How long a line may take on a busy machine before the test fails."""


class ChildFailed(AssertionError):
    """A child ended or kept silent where a line was expected."""


class Child:
    """One process; what it prints is heard line by line, what it is told goes to its stdin."""

    def __init__(self, role: str, settings: dict[str, Any], bell: threading.Condition) -> None:
        self.role = role
        self._bell = bell
        self._lines: deque[str] = deque()
        self._ended = False
        self._complaint: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.child", role, json.dumps(settings)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._ears = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._listen_to_errors, daemon=True),
        ]
        for ear in self._ears:
            ear.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._bell:
                self._lines.append(line)
                self._bell.notify_all()
        with self._bell:
            self._ended = True
            self._bell.notify_all()

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        self._complaint.extend(self._process.stderr)

    @property
    def has_news(self) -> bool:
        return bool(self._lines) or self._ended

    def hear(self, event: str) -> dict[str, Any]:
        """The next line, which must tell of this event."""
        with self._bell:
            self._bell.wait_for(lambda: self.has_news, PATIENCE)
        if not self._lines:
            self._ears[1].join(1)
            state = "ended" if self._ended else f"kept silent for {PATIENCE:g} s"
            raise ChildFailed(f"{self.role} {state} before {event!r}: {''.join(self._complaint)}")
        said: dict[str, Any] = json.loads(self._lines.popleft())
        assert said["event"] == event, f"expected {event!r}, heard {said}"
        return said

    def hear_all(self) -> list[dict[str, Any]]:
        """Every whole line until the end of the process."""
        with self._bell:
            self._bell.wait_for(lambda: self._ended, PATIENCE)
        return [json.loads(line) for line in self._lines if line.endswith("\n")]

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """A crash: nothing of the process runs any more."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def close(self) -> None:
        self.kill()
        for ear in self._ears:
            ear.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class Crew:
    """The children of one test; leaving the context ends them all, each by its own id."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._bell = threading.Condition()

    def start(self, role: str, **settings: Any) -> Child:
        child = Child(role, settings, self._bell)
        self._children.append(child)
        return child

    def first_with_news(self, children: Sequence[Child]) -> Child:
        """Whichever of them speaks (or ends) first."""
        with self._bell:
            self._bell.wait_for(lambda: any(child.has_news for child in children), PATIENCE)
        return next((child for child in children if child.has_news), children[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.close()
