"""Lists and ends sessions of the dashboard: all of them for an admin, else those of the key."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from towline.dashboard.session import NEWEST, LiveSession, Sessions
from towline.http.access import Anybody
from towline.http.auth import Principal
from towline.http.key_text import allows
from towline.http.models import Limit, Page, moment
from towline.http.problem_docs import documented
from towline.inbox.access import TheControl
from towline_once.asgi.messages import Problem
from towline_once.metrics import Audit

_Cursor = Annotated[
    str | None,
    Query(
        pattern=r"^[0-9]{1,18}-[0-9a-f]{1,40}$",
        description="`next` of the page before; without it, the newest.",
    ),
]
_Id = Annotated[str, Path(pattern=r"^[0-9a-f]{1,40}$", description="The session's id.")]

router = APIRouter(prefix="/api", responses=documented(401, 403, 422, 503))


class SessionOut(BaseModel):
    """A session of the dashboard."""

    id: str
    key: str = Field(description="The prefix of the API key, or `settings:NAME`.")
    name: str = Field(description="The name of the API key.")
    address: str = Field(description="The client's address when it was last seen.")
    user_agent: str
    created_at: datetime
    last_seen_at: datetime = Field(description="Within a minute.")
    expires_at: datetime

    @classmethod
    def of(cls, live: LiveSession) -> SessionOut:
        row = live.row
        return cls(
            id=row.id,
            key=row.principal,
            name=live.principal.name,
            address=row.address,
            user_agent=row.agent,
            created_at=moment(row.created_us),
            last_seen_at=moment(row.seen_us),
            expires_at=moment(row.expires_us),
        )


class SessionEnded(BaseModel):
    id: str
    status: Literal["ended"] = "ended"


@router.get("/sessions", tags=["sessions"], summary="List sessions of the dashboard")
async def list_sessions(
    request: Request, who: Anybody, limit: Limit = 50, cursor: _Cursor = None
) -> Page[SessionOut]:
    """The sessions, the newest first; without the scope `admin`, those of the same key alone."""
    at, _, last = (cursor or "").partition("-")
    before = (int(at), last) if cursor else NEWEST
    found, following = await _sessions(request).listing(only_own(who), limit, before)
    after = f"{following[0]}-{following[1]}" if following is not None else None
    return Page(items=[SessionOut.of(one) for one in found], next=after)


@router.delete(
    "/sessions/{session_id}",
    tags=["sessions"],
    summary="End a session of the dashboard",
    responses=documented(404),
)
async def end_session(
    request: Request, control: TheControl, who: Anybody, session_id: _Id
) -> SessionEnded:
    """End a session at once; without the scope `admin`, only one of the same key."""
    await end_one(_sessions(request), control.audit, who, session_id)
    return SessionEnded(id=session_id)


def only_own(who: Principal) -> str | None:
    return None if allows(who.scopes, "admin") else who.id


async def end_one(sessions: Sessions, audit: Audit, who: Principal, session_id: str) -> None:
    found = await sessions.find(session_id)
    own = only_own(who)
    ours = found is not None and own in (None, found.row.principal)
    if not ours or not await sessions.end(session_id):
        raise Problem(404, "not_found", "there is no such session, or it has ended")
    audit("SESSION_ENDED", by=who.name or who.id, key=who.id, session=session_id)


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions
