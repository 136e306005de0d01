"""`towline` at a terminal of a given width, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

SECONDS = 100


def typed(
    folder: Path, *arguments: str, answers: str = "", columns: int = 120, url: str = ""
) -> str:
    """Run it there, give the answers, and return all that it said."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    inherited = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "CI")}
    stored = {"TOWLINE_DATABASE_URL": url} if url else {}
    process = subprocess.Popen(
        [sys.executable, "-m", "towline", *arguments],
        cwd=folder,
        env={**inherited, "TERM": "xterm-256color", **stored},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, answers.encode())
    said = b""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            some = os.read(ours, 4096)
        except OSError:  # its end of the terminal is closed
            break
        if not some:
            break
        said += some
    os.close(ours)
    assert process.wait(SECONDS) == 0, said.decode()
    return said.decode()
