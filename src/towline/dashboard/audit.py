"""The audit log as a page."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from starlette.responses import Response

from towline.dashboard.page_request import Visit, page

# ------------------------------------------------------------------ the end of the file
# The end of the audit file, newest first. A line that cannot be read is left out.

MOST_BYTES: Final = 2_000_000
_ROTATED: Final = 1


class Entry(NamedTuple):
    at: str
    event: str
    by: str
    rest: str


def tail(path: Path, most_bytes: int = MOST_BYTES) -> list[Entry]:
    """Of the file and the one that was rotated last, so many bytes from the end."""
    found: list[Entry] = []
    left = most_bytes
    for one in (path, path.with_name(f"{path.name}.{_ROTATED}")):
        raw = _end_of(one, left)
        left -= len(raw)
        found += _entries(raw)
        if left <= 0:
            break
    return found


def _end_of(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            raw = file.read(most)
    except FileNotFoundError:
        return b""
    return raw if size <= most else raw.partition(b"\n")[2]


def _entries(raw: bytes) -> Iterator[Entry]:
    for line in reversed(raw.splitlines()):
        try:
            fields = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict):
            yield _entry(fields)


def _entry(fields: Mapping[str, Any]) -> Entry:
    rest = {name: value for name, value in fields.items() if name not in ("at", "event", "by")}
    text = ", ".join(f"{name}={value}" for name, value in rest.items())
    return Entry(
        str(fields.get("at", "")), str(fields.get("event", "")), str(fields.get("by") or ""), text
    )


def matching(
    entries: list[Entry], event: str | None, by: str | None, text: str | None
) -> list[Entry]:
    """Without regard to case; what is not given does not matter."""

    def fits(entry: Entry) -> bool:
        wanted = ((event, entry.event), (by, entry.by), (text, " ".join(entry)))
        return all(part is None or part.lower() in whole.lower() for part, whole in wanted)

    return [entry for entry in entries if fits(entry)]


# ------------------------------------------------------------------ routes

A_PAGE: Final = 100


@page
async def audit(visit: Visit) -> Response:
    given = {name: visit.given(name) for name in ("event", "by", "text")}
    path = visit.desk.audit_file
    if path is None:
        return visit.page("audit.html", "audit", entries=None, given=given, following=None)
    entries = await asyncio.to_thread(tail, path)
    found = matching(entries, given["event"], given["by"], given["text"])
    skip = visit.given("skip", 7) or "0"
    start = int(skip) if skip.isascii() and skip.isdigit() else 0
    following = start + A_PAGE if len(found) > start + A_PAGE else None
    return visit.page(
        "audit.html", "audit", entries=found[start : start + A_PAGE], given=given,
        following=following,
    )  # fmt: skip
