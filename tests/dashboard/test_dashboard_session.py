"""Signing in, what a session may do, and what ends it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator

import pytest

from tests.app.control_plane import KEY, READ_ONLY, SECRET, WITH_KEY, is_problem
from tests.dashboard.dashboard_plane import (
    DashboardPlane,
    Visitor,
    dashboard_on,
    token_in,
    visiting,
)
from tests.http.asgi_client import serving
from tests.pulls.tow_plane import COMMANDER
from towline.dashboard.session import NEWEST, SESSION_SECONDS
from towline.dashboard.session_store import SqlSessions, StoredSession
from towline.http.auth import make_key

PAGES = (
    *("/ui/", "/ui/health", "/ui/inbox", "/ui/jobs", "/ui/runs", "/ui/audit", "/ui/live"),
    "/ui/sessions",
    *("/ui/pr/octo-org/app/7", "/ui/inbox/x", "/ui/jobs/x", "/ui/runs/x"),
)


@pytest.fixture
async def plane(sqlite_url: str) -> AsyncIterator[DashboardPlane]:
    """A store in a file."""
    async with dashboard_on(sqlite_url) as opened:
        yield opened


@pytest.fixture
async def visitor(plane: DashboardPlane) -> AsyncIterator[Visitor]:
    """Somebody who has not signed in."""
    async with visiting(plane) as opened:
        yield opened


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_is_open(visitor: Visitor, path: str) -> None:
    """Without a session every page leads to the sign-in, and shows nothing."""
    answer = await visitor.client.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/ui/sign-in?next=")
    assert answer.text == ""


async def test_the_root_leads_to_the_dashboard(visitor: Visitor) -> None:
    """The address that people type."""
    answer = await visitor.client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui/")


async def test_a_key_opens_a_session(plane: DashboardPlane, visitor: Visitor) -> None:
    """The cookie is out of reach of scripts and of other sites; the audit says who came."""
    answer = await visitor.sign_in(KEY, "/ui/health?x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/health?x=1")
    cookie = next(
        one for one in answer.headers.get_list("set-cookie") if one.startswith("towline_session=")
    )
    for part in ("HttpOnly", "SameSite=strict", "Path=/ui", f"Max-Age={SESSION_SECONDS}"):
        assert part in cookie
    assert "Secure" not in cookie
    assert KEY not in cookie
    assert plane.audited[-1]["event"] == "SIGNED_IN"
    assert plane.audited[-1]["by"] == "operator"
    assert "operator" in await visitor.get("/ui/")


async def test_behind_https_the_cookie_is_secure(visitor: Visitor) -> None:
    """A proxy says how the browser came."""
    visitor.client.headers["x-forwarded-proto"] = "https"
    answer = await visitor.sign_in(KEY)
    assert all("Secure" in one for one in answer.headers.get_list("set-cookie"))


@pytest.mark.parametrize(
    "onward",
    [
        "https://elsewhere.example/",
        "//elsewhere.example",
        "/ui//elsewhere.example",
        "/docs",
        "/ui/\\x",
    ],
)
async def test_the_way_on_stays_here(visitor: Visitor, onward: str) -> None:
    """A link to the sign-in cannot send people to another host."""
    answer = await visitor.sign_in(KEY, onward)
    assert answer.headers["location"] == "/ui/"


async def test_a_wrong_key_gets_one_line(plane: DashboardPlane, visitor: Visitor) -> None:
    """The same page, what is wrong, and not the key."""
    answer = await visitor.sign_in("<script>wrong")
    assert answer.status_code == 401
    assert answer.text.count("That key is not valid.") == 1
    assert "script>wrong" not in answer.text
    assert not plane.audited


async def test_a_key_that_may_not_read_does_not_open(plane: DashboardPlane) -> None:
    """A worker's key is for its work."""
    made = await make_key(plane.keys, "worker", ["work"], SECRET)
    async with visiting(plane) as visitor:
        answer = await visitor.sign_in(made.text)
        assert answer.status_code == 403
        assert "This key may not read" in answer.text


async def test_wrong_keys_are_slowed_down(plane: DashboardPlane, visitor: Visitor) -> None:
    """After ten in a minute wrong ones have to wait, and the right one opens."""
    for _ in range(10):
        assert (await visitor.sign_in("wrong")).status_code == 401
    refused = await visitor.sign_in("wrong")
    assert refused.status_code == 429
    assert "Too many wrong keys. Try again in" in refused.text
    assert int(refused.headers["retry-after"]) <= 61
    assert (await visitor.sign_in(KEY)).status_code == 303
    visitor.client.cookies.clear()
    plane.clock.advance(61)
    assert (await visitor.sign_in("wrong")).status_code == 401


async def test_a_session_ends(plane: DashboardPlane, visitor: Visitor) -> None:
    """After twelve hours the cookie opens nothing."""
    await visitor.sign_in(KEY)
    plane.clock.advance(SESSION_SECONDS - 1)
    await visitor.get("/ui/")
    plane.clock.advance(2)
    await visitor.get("/ui/", 303)


async def test_signing_out(plane: DashboardPlane, visitor: Visitor) -> None:
    """The cookie goes, and a copy of it opens nothing."""
    await visitor.sign_in(KEY)
    copied = {"cookie": f"towline_session={visitor.client.cookies['towline_session']}"}
    answer = await visitor.send("/ui/", "/ui/sign-out")
    assert answer.headers["location"] == "/ui/sign-in?note=signed-out"
    await visitor.get("/ui/", 303)
    assert plane.audited[-1]["event"] == "SIGNED_OUT"
    async with serving(plane.app()) as another:
        assert (await another.get("/ui/", headers=copied)).status_code == 303


async def test_a_revoked_key_ends_its_sessions(plane: DashboardPlane) -> None:
    """Within the few seconds that a key's record is kept."""
    made = await make_key(plane.keys, "night shift", ["admin"], SECRET)
    async with visiting(plane, made.text) as visitor:
        await visitor.get("/ui/")
        await plane.keys.revoke(made.prefix)
        plane.clock.advance(10)
        await visitor.get("/ui/", 303)


async def test_a_forged_cookie_opens_nothing(plane: DashboardPlane, visitor: Visitor) -> None:
    """Neither a changed one, nor one without a signature, nor rubbish."""
    await visitor.sign_in(READ_ONLY)
    cookie = visitor.client.cookies["towline_session"]
    body, _, signature = cookie.partition(".")
    for forged in (f"{body}x.{signature}", body, f"{body}.", "x.y", "", "é" * 9, "a" * 5000):
        answer = await visitor.client.get(
            "/ui/health", headers=[(b"cookie", f"towline_session={forged}".encode())]
        )
        assert answer.status_code == 303, forged


async def test_sessions_outlive_a_restart(plane: DashboardPlane) -> None:
    """They are rows, which every process with the same secret knows."""
    async with visiting(plane, KEY) as visitor:
        cookie = visitor.client.cookies["towline_session"]
    async with serving(plane.app()) as client:
        answer = await client.get("/ui/", headers={"cookie": f"towline_session={cookie}"})
        assert answer.status_code == 200


async def cookie_rows(plane: DashboardPlane) -> list[StoredSession]:
    now = plane.clock.now_us()
    return await SqlSessions(plane.database).listing(None, NEWEST, now, 100)


async def test_a_reader_of_the_database_has_no_cookie(plane: DashboardPlane) -> None:
    """Neither what opens a session nor the secret that signs it is in any table."""
    async with visiting(plane, KEY) as visitor:
        cookie = visitor.client.cookies["towline_session"]
        (row,) = await cookie_rows(plane)
        text = cookie.partition(".")[2]
        assert text not in repr(row)
        assert (await plane.documents.read("dashboard secret")).body == ""
        forged = f"{row.id}.{row.digest[:43]}"
        visitor.client.cookies.set("towline_session", forged, domain="t", path="/ui")
        answer = await visitor.client.get(
            "/ui/", headers=[(b"cookie", f"towline_session={forged}".encode())]
        )
        assert answer.status_code == 303


async def test_a_row_that_was_written_without_the_secret_opens_nothing(
    plane: DashboardPlane, visitor: Visitor
) -> None:
    """Somebody who can write to the table cannot make a session either."""
    await visitor.sign_in(KEY)
    (row,) = await cookie_rows(plane)
    cookie = f"{'a' * 20}.{'b' * 43}"
    digest = hashlib.sha256(cookie.encode()).hexdigest()
    await SqlSessions(plane.database).add(row._replace(id="a" * 20, digest=digest))
    async with serving(plane.app()) as another:
        answer = await another.get("/ui/", headers={"cookie": f"towline_session={cookie}"})
        assert answer.status_code == 303


async def test_use_of_a_session_is_noted_once_a_minute(plane: DashboardPlane) -> None:
    """A page that is open writes nothing for each request."""
    async with visiting(plane, KEY) as visitor:
        (row,) = await cookie_rows(plane)
        for seconds, noted in ((0, False), (30, False), (40, True), (20, False), (50, True)):
            plane.clock.advance(seconds)
            before = row.seen_us
            await visitor.get("/ui/health")
            (row,) = await cookie_rows(plane)
            assert (row.seen_us > before) == noted, seconds


async def test_expired_sessions_are_deleted(plane: DashboardPlane) -> None:
    """The upkeep finds them by their end; those that may still be used stay."""
    async with visiting(plane, KEY):
        plane.clock.advance(SESSION_SECONDS - 1)
    async with visiting(plane, KEY):
        assert await plane.sessions.sweep(100) == 0
        plane.clock.advance(1)
        assert await plane.sessions.sweep(100) == 1
        assert len(await cookie_rows(plane)) == 1


async def test_a_person_ends_the_other_sessions(plane: DashboardPlane) -> None:
    """The page beside the sign-out lists one's own, and ends one of them or all others."""
    async with (
        visiting(plane, READ_ONLY) as here,
        visiting(plane, READ_ONLY) as there,
        visiting(plane, READ_ONLY) as yonder,
        visiting(plane, KEY) as admin,
    ):
        assert 'href="/ui/sessions"' in await here.get("/ui/")
        page = await here.get("/ui/sessions")
        assert page.count('/end"') == 3
        assert "(this one)" in page
        assert (await admin.get("/ui/sessions")).count('/end"') == 4
        other = there.client.cookies["towline_session"].partition(".")[0]
        ended = await here.send("/ui/sessions", f"/ui/sessions/{other}/end")
        assert ended.headers["location"] == "/ui/sessions?note=session-ended"
        await there.get("/ui/", 303)
        await yonder.get("/ui/")
        await here.send("/ui/sessions", "/ui/sessions/end-others")
        await yonder.get("/ui/", 303)
        await here.get("/ui/")
        await admin.get("/ui/")
        of_admin = admin.client.cookies["towline_session"].partition(".")[0]
        refused = await here.send("/ui/sessions", f"/ui/sessions/{of_admin}/end")
        assert refused.status_code == 404
        await admin.get("/ui/")


async def test_the_api_lists_and_ends_sessions(plane: DashboardPlane) -> None:
    """An admin's key sees all, page by page; another sees and ends its own alone."""
    async with (
        visiting(plane, READ_ONLY) as viewer,
        visiting(plane, KEY) as operator,
        serving(plane.app()) as api,
    ):
        reader = {"x-api-key": READ_ONLY}
        first = (await api.get("/api/sessions?limit=1", headers=WITH_KEY)).json()
        cursor = {"limit": 1, "cursor": first["next"]}
        second = (await api.get("/api/sessions", params=cursor, headers=WITH_KEY)).json()
        assert second["next"] is None
        found = {one["key"]: one for one in first["items"] + second["items"]}
        assert set(found) == {"settings:operator", "settings:viewer"}
        assert found["settings:viewer"]["address"] == "127.0.0.1"
        own = (await api.get("/api/sessions", headers=reader)).json()
        assert [one["id"] for one in own["items"]] == [found["settings:viewer"]["id"]]
        not_own = f"/api/sessions/{found['settings:operator']['id']}"
        assert is_problem(await api.delete(not_own, headers=reader), 404, "not_found")
        assert is_problem(await api.get("/api/sessions"), 401, "unauthorized")
        await operator.get("/ui/")
        ended = await api.delete(f"/api/sessions/{own['items'][0]['id']}", headers=reader)
        assert ended.status_code == 200
        await viewer.get("/ui/", 303)
        assert (await api.delete(not_own, headers=WITH_KEY)).status_code == 200
        await operator.get("/ui/", 303)
        assert is_problem(await api.delete(not_own, headers=WITH_KEY), 404, "not_found")
        assert plane.audited[-1]["event"] == "SESSION_ENDED"


FORMS = (
    "/ui/pr/octo-org/app/7/command", "/ui/health/reset", "/ui/inbox/d1/redeliver",
    "/ui/jobs/j1/redeliver", "/ui/runs/r1/unblock", "/ui/sign-out", "/ui/sign-in",
    "/ui/sessions/end-others", "/ui/sessions/0123456789/end",
)  # fmt: skip


@pytest.mark.parametrize("path", FORMS)
async def test_a_form_from_elsewhere_is_refused(
    plane: DashboardPlane, visitor: Visitor, path: str
) -> None:
    """Without the page's token nothing is done, whoever is signed in."""
    await visitor.sign_in(KEY)
    for fields in ({}, {"csrf": ""}, {"csrf": "guess"}):
        answer = await visitor.client.post(path, data={"command": "/rebuild", "x": "y", **fields})
        assert answer.status_code == 403
        assert "<code>csrf</code>" in answer.text


async def test_one_sessions_token_is_not_anothers(plane: DashboardPlane) -> None:
    """A token is bound to the session whose page has it."""
    async with visiting(plane, KEY) as first, visiting(plane, KEY) as second:
        token = token_in(await first.client.get("/ui/"))
        answer = await second.client.post("/ui/sign-out", data={"csrf": token})
        assert answer.status_code == 403


async def test_scopes_hold_on_every_form(plane: DashboardPlane) -> None:
    """Who may read cannot order; who may order cannot reset a breaker."""
    await plane.tow("octo-org/app", 7, state="CHECKS_FAILED")
    async with visiting(plane, READ_ONLY) as viewer:
        page = await viewer.get("/ui/pr/octo-org/app/7")
        assert re.search(r'id="do-rebuild"[^>]* disabled', page)
        answer = await viewer.send(
            "/ui/pr/octo-org/app/7", "/ui/pr/octo-org/app/7/command", command="/rebuild"
        )
        assert answer.status_code == 403
        assert "this needs the scope command; your key has read" in answer.text
    async with visiting(plane, COMMANDER) as deputy:
        answer = await deputy.send("/ui/", "/ui/health/reset", name="global")
        assert answer.status_code == 403
        assert "<code>forbidden</code>" in answer.text
    assert not await plane.jobs.listing(None, "", 10)
