"""The page of sessions: an admin sees all, anybody else those of the same key."""

from __future__ import annotations

from starlette.responses import Response

from towline.dashboard.http import end_one, only_own
from towline.dashboard.page_request import Form, Visit, action, page, went
from towline.dashboard.render import HOME

_A_PAGE = 200


@page
async def sessions(visit: Visit) -> Response:
    found, more = await visit.house.sessions.listing(only_own(visit.principal), _A_PAGE)
    own = visit.principal.id
    others = any(one.row.principal == own and one.row.id != visit.session.id for one in found)
    return visit.page(
        "sessions.html", "sessions", found=found, more=more is not None, others=others
    )


@action("read")
async def end(visit: Visit, form: Form) -> Response:
    session_id = str(visit.request.path_params["id"])[:100]
    await end_one(visit.house.sessions, visit.control.audit, visit.principal, session_id)
    if session_id == visit.session.id:
        return went(f"{HOME}/sign-in", "signed-out")
    return went(f"{HOME}/sessions", "session-ended")


@action("read")
async def end_others(visit: Visit, form: Form) -> Response:
    ended = await visit.house.sessions.end_others(visit.session)
    visit.control.audit("SESSIONS_ENDED", by=visit.name, key=visit.principal.id, sessions=ended)
    return went(f"{HOME}/sessions", "sessions-ended")
