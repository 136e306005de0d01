"""Log lines: JSON for machines, text for a terminal; fields travel in `extra`.

A formatter of our own, since one line for every delivery is on the hot path: it costs a third of
what general structured loggers take over the standard library's records.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

FIELDS = (
    "delivery_id", "run_key", "event_id", "run_id", "repo", "attempt_count", "job_id", "kind",
    "source", "status", "seconds", "reason", "error", "pr_number", "event_type", "state", "detail",
    "thing",
)  # fmt: skip
"""What a line may carry beside its text."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    carried = record.__dict__
    return {name: carried[name] for name in FIELDS if carried.get(name) is not None}


class JsonLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._shown = ""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": self._time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        audited: str | None = record.__dict__.get("audit_event")
        if audited is None:
            line |= {"event": record.getMessage(), **fields_of(record)}
        else:
            line = {**line, "event": audited, **record.__dict__["audit_fields"], **line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # a lone surrogate, an integer of more than 64 bits
            return json.dumps(line, default=str)

    def _time(self, record: logging.LogRecord) -> str:
        """Many lines share a second, whose text is kept."""
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._shown = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._shown}.{int(record.msecs):03d}Z"


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        rest = " ".join(f"{name}={value}" for name, value in fields_of(record).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {rest}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(form: Literal["auto", "json", "text"], level: str) -> None:
    """Send Towline's log lines to standard error, which is a terminal or a log collector."""
    _leave_out_what_no_line_shows()
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("towline").setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _leave_out_what_no_line_shows() -> None:
    """The standard library would look up the caller, thread and process of each line."""
    logging._srcfile = None
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):
        logging.logAsyncioTasks = False
