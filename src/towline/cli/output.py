"""Standard output that says in one line when it cannot be written.

A broken pipe is no error: the reader has read enough.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from towline_once.errors import Rejected


def tell_what_cannot_be_written() -> None:
    if sys.stdout is not None:  # it may have been closed before the start
        sys.stdout = cast(TextIO, _Output(sys.stdout))


class _Output:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._told():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._told():
            self._stream.flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Rejected(f"cannot write the output: {error.strerror or error}") from None


def write_what_waits() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def leave_what_cannot_be_written() -> None:
    """It would fail again at the end of the process, in more words."""
    try:
        write_what_waits()
    except (Rejected, OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
