"""Towline as its users run it: `towline serve` and `towline worker`, as processes to be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
_REMEMBERED = 50
_LISTENS = re.compile(r"Towline listens on http://127\.0\.0\.1:(\d+)")


class Program:
    """One process of Towline; it is ended by its id when the test is over.

    With `log`, what it says goes to that file as well, over all its starts. `under` is a program
    that starts it.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str],
        *arguments: str,
        log: Path | None = None,
        under: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._arguments = arguments
        self._log = log
        self._under = under
        self.port = 0
        self.listening = False
        self.output: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._ear: threading.Thread | None = None

    def start(self) -> Self:
        arguments = list(self._arguments)
        if arguments[0] == "serve":
            arguments += ["--port", str(self.port)]
        self._process = subprocess.Popen(
            [*self._under, *self.command(arguments)],
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
        self.listening = False
        decided = threading.Event()
        self._ear = threading.Thread(target=self._hear, args=(self._process, decided))
        self._ear.start()
        if arguments[0] == "serve" and not (decided.wait(PATIENCE) and self.listening):
            raise AssertionError("".join(self.output) or "it does not say where it listens")
        return self

    def command(self, arguments: list[str]) -> list[str]:
        return [sys.executable, "-m", "towline", *arguments]

    def _hear(self, process: subprocess.Popen[str], decided: threading.Event) -> None:
        """Until it has ended; `decided` is set when it listens, or will not."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self._note(line)
                if said := _LISTENS.search(line):
                    self.port = int(said[1])
                    self.listening = True
                    decided.set()
        decided.set()

    def _note(self, line: str) -> None:
        if self._log is None:
            self.output.append(line)
            return
        self.output = [*self.output[-_REMEMBERED:], line]
        with self._log.open("a") as log:
            log.write(line)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def freeze(self) -> None:
        """As a machine that is suspended: it keeps its sockets, and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

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
        if self.running:
            self.kill()


def open_files(folder: Path) -> dict[str, str]:
    """The files and folders below that the group or others may use, each with its mode."""
    return {
        str(path.relative_to(folder)): f"{path.lstat().st_mode & 0o777:o}"
        for path in folder.rglob("*")
        if path.lstat().st_mode & 0o077 and not path.is_symlink()
    }
