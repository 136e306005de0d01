"""The audit log as a page."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from towline.web.dashboard.audit_tail import matching, tail
from towline.web.dashboard.visits import Visit, page

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
