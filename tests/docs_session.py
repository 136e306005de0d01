"""A reader with terminals: types what a page shows, and keeps what it starts running.

Ports are replaced by free ones. What a page cannot know is filled in from what was answered:
`tow_…` by the key that `towline serve` printed, `JOB_ID` and `TOKEN` by those of the last answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import orjson

from tests.docs_pages import Block
from tests.servers import free_port

PATIENCE = 90.0
_PORTS = ("8788", "8789", "8790")
_STAYS = re.compile(r"(?:[A-Z_]+=(?:'[^']*'|\S+) )*towline (?:serve|worker|sim serve)\b.*")
_KEY = re.compile(r"shown this once: (tow_\S+)")
_LISTENS = re.compile(r"listens on http://")
_IN_ANSWERS = {"JOB_ID": "job_id", "TOKEN": "token"}


class Session:
    """One reader of one page, in a folder of their own."""

    def __init__(self, folder: Path, given: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.ports = {port: str(free_port()) for port in _PORTS}
        self.words: dict[str, str] = dict(given or {})
        self.said: list[str] = []
        self._state = folder / ".variables"
        self._place = folder / ".place"
        self._running: list[subprocess.Popen[str]] = []
        self._ears: list[threading.Thread] = []
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("TOWLINE_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOWLINE_SERVE__PORT": self.ports["8788"],
            "TOWLINE_LOG__LEVEL": "warning",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            "GIT_CONFIG_GLOBAL": str(folder / ".gitconfig"),
            "COLUMNS": "200",
        }

    def url(self, path: str, port: str = "8788") -> str:
        return f"http://127.0.0.1:{self.ports[port]}{path}"

    def put(self, block: Block) -> None:
        """Save a block as the file that its page says."""
        (self.folder / (block.session or "")).write_text(self._filled(block.text), encoding="utf-8")

    def type(self, text: str) -> str:
        """Type these lines; the output of those that end."""
        output = ""
        for part, stays in _parts(self._filled(text)):
            output += self._start(part) if stays else self._run(part)
        return output

    def _filled(self, text: str) -> str:
        for shown, real in (*self.ports.items(), *self.words.items()):
            text = text.replace(shown, real)
        return text

    def _run(self, script: str) -> str:
        """Each line must succeed, and every part of it: a page's next line relies on it."""
        wrapped = (
            f"set -ea -o pipefail\n{self._recalled()}\n{_checked(script)}\n"
            f"export -p | grep -v -E ' (OLD)?PWD=' > '{self._state}'\npwd > '{self._place}'\n"
        )
        done = subprocess.run(
            ["bash", "-c", wrapped],
            cwd=self._folder_now(),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}\n{self.said}"
        self._remember(done.stdout)
        return done.stdout

    def _recalled(self) -> str:
        return f". '{self._state}'" if self._state.exists() else ""

    def _folder_now(self) -> Path:
        """Where the last lines ended; never outside of the session's own folder."""
        if not self._place.exists():
            return self.folder
        found = Path(self._place.read_text(encoding="utf-8").strip())
        assert found.is_relative_to(self.folder), found
        return found

    def _remember(self, output: str) -> None:
        for found in re.findall(r"\{.*\}", output):
            with contextlib.suppress(orjson.JSONDecodeError):
                answer = orjson.loads(found)
                for word, member in _IN_ANSWERS.items():
                    if member in answer:
                        self.words[word] = str(answer[member])

    def _start(self, line: str) -> str:
        """Something that stays, in a terminal of its own; a door is waited for."""
        script = f"set -a\n{self._recalled()}\n{_with_exec(line)}\n"
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        listening = threading.Event()
        ear = threading.Thread(target=self._hear, args=(process, listening))
        ear.start()
        self._ears.append(ear)
        if "worker" not in line:
            assert listening.wait(PATIENCE), f"{line}\n{self.said}"
            assert process.poll() is None, f"{line}\n{self.said}"
        return ""

    def _hear(self, process: subprocess.Popen[str], listening: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self.said.append(line)
                if key := _KEY.search(line):
                    self.words["tow_…"] = key[1]
                    listening.set()
                elif _LISTENS.search(line) and ("simulator" in line or "tow_…" in self.words):
                    listening.set()
        listening.set()

    def stop_last(self) -> None:
        """Ctrl-C in the terminal that was opened last."""
        _end(self._running.pop(), signal.SIGINT)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < ends, f"not in time: {what}\n{self.said}"
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            _end(process, signal.SIGKILL)
        for ear in self._ears:
            ear.join(PATIENCE)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Lines that go together, and whether what they start stays."""
    waiting: list[str] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if _STAYS.match(line.strip()):
            if waiting:
                yield "\n".join(waiting), False
            waiting = []
            yield line.strip(), True
        else:
            waiting.append(line)
    if any(line.strip() for line in waiting):
        yield "\n".join(waiting), False


def _checked(script: str) -> str:
    """`set -e` lets the left side of `&&` fail; here the lines end where anything does."""
    return re.sub(r"[ ]&&[ ](?=\S)", "\n", script)


def _with_exec(line: str) -> str:
    """The shell makes room for the program, so that a signal reaches it."""
    before, towline, after = line.partition("towline ")
    return f"{before}exec {towline}{after}" if not before else f"exec env {line}"


def _end(process: subprocess.Popen[str], number: int) -> None:
    """Again after a while, as a person would: Python loses a Ctrl-C in its first milliseconds."""
    ends = time.monotonic() + PATIENCE
    while process.poll() is None:
        assert time.monotonic() < ends, "it does not end"
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE / 4)
