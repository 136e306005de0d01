"""Towline as its users run it: `towline serve` and `towline worker`, as processes to be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
_LISTENS = re.compile(r"Towline listens on http://127\.0\.0\.1:(\d+)")


class Program:
    """One process of Towline; it is ended by its id when the test is over."""

    def __init__(self, folder: Path, settings: dict[str, str], *arguments: str) -> None:
        self._folder = folder
        self._settings = settings
        self._arguments = arguments
        self.port = 0
        self.output: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._ear: threading.Thread | None = None

    def start(self) -> Self:
        arguments = list(self._arguments)
        if arguments[0] == "serve":
            arguments += ["--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "towline", *arguments],
            cwd=self._folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "TOWLINE_LOG__LEVEL": "warning",
                **self._settings,
            },
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        listening = threading.Event()
        self._ear = threading.Thread(target=self._hear, args=(self._process, listening))
        self._ear.start()
        if arguments[0] == "serve" and not listening.wait(PATIENCE):
            raise AssertionError("".join(self.output) or "it does not say where it listens")
        return self

    def _hear(self, process: subprocess.Popen[str], listening: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self.output.append(line)
                if said := _LISTENS.search(line):
                    self.port = int(said[1])
                    listening.set()

    def kill(self) -> None:
        """As the machine does when it runs out of memory: no handler runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As an operator does; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self._process is not None
        assert self._ear is not None
        self._process.send_signal(number)
        code = self._process.wait(PATIENCE)
        self._ear.join(PATIENCE)
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
