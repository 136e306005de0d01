"""What a browser makes of the pages: nothing leaves the origin, nothing hostile runs."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, Request, expect

from tests.browser.conftest import Desk
from tests.browser.test_dashboard_in_a_browser import PAGES, furnished

pytestmark = pytest.mark.slow
NASTY = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
HOSTILE = f"{NASTY}'\"><svg onload=document.title='run'>{{{{7*7}}}}"


async def hostile(desk: Desk) -> None:
    """Titles, branches, reasons and logs that would run if they were taken for markup."""
    told = {"rule": HOSTILE, "reason": HOSTILE, "evidence": HOSTILE, "next_action": "REBUILD"}
    now = desk.plane.clock.now_us() / 1e6
    await desk.plane.tow(
        "octo-org/app", 66, state="CHECKS_FAILED", title=HOSTILE, head_ref=HOSTILE, author=HOSTILE,
        diagnosis={**told, "at": now + 1},
        events=[("CHECKS_FAILED", {"to": "CHECKS_FAILED", "reason": HOSTILE, "actor": HOSTILE})],
    )  # fmt: skip


async def test_no_request_leaves_the_origin(desk: Desk) -> None:
    """Every page, with its scripts, its style and its stream, from this one host."""
    await furnished(desk.plane)
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page = await desk.signed_in()
    page.context.on("request", note)
    for path in PAGES:
        await page.goto(path)
    own = urlsplit(desk.base).netloc
    assert len(asked) > len(PAGES)
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {own}
    desk.complaints = [one for one in desk.complaints if "404" not in one]


async def test_hostile_text_does_not_run(desk: Desk) -> None:
    """It is shown as it was written, on every page that shows it; also as it is put in place."""
    await hostile(desk)
    page = await desk.signed_in()
    for path in ("/ui/", "/ui/?search=img", "/ui/pr/octo-org/app/66", "/ui/health"):
        await page.goto(path)
        await page.wait_for_load_state("load")
        await expect(page.locator("#main")).to_contain_text("onerror=")
        assert "run" not in await page.title()
        assert await page.locator("main img, main script").count() == 0
    await page.goto("/ui/")
    await page.fill("input[name=search]", "octo-org/app#66")
    await expect(page).to_have_url(re.compile("search=octo-org"))
    await expect(page.locator(".card")).to_have_count(1)
    assert await page.locator("main img, main script").count() == 0


async def test_a_script_from_elsewhere_is_refused(desk: Desk) -> None:
    """The policy stops an inline script, a style and a frame, whoever put them there."""
    page = await desk.signed_in()
    done = await page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          document.body.setAttribute("onclick", "window.ran = true");
          document.body.click();
          return window.ran === true;
        }"""
    )
    assert done is False
    assert [one for one in desk.complaints if "Content Security Policy" in one]
    desk.complaints.clear()


async def test_the_session_is_out_of_reach_of_scripts(desk: Desk) -> None:
    """The cookie is for HTTP alone and this site alone, and a new one with each signing in."""
    page = await desk.signed_in()
    assert "towline_session" not in await page.evaluate("document.cookie")
    first = await _session(page)
    assert first["httpOnly"] is True
    assert (first["sameSite"], first["path"]) == ("Strict", "/ui")
    again = await desk.signed_in()
    assert (await _session(again))["value"] != first["value"]


async def test_a_cookie_from_before_is_not_taken_over(desk: Desk) -> None:
    """Whoever planted a cookie before somebody signs in has no session afterwards."""
    context = await desk.context()
    planted = "planted.by-somebody"
    await context.add_cookies(
        [{"name": "towline_session", "value": planted, "url": f"{desk.base}/ui"}]
    )
    page = await context.new_page()
    await page.goto("/ui/")
    await expect(page.locator("#key")).to_be_visible()


async def _session(page: Page) -> dict[str, object]:
    found = [one for one in await page.context.cookies() if one.get("name") == "towline_session"]
    assert len(found) == 1
    return {str(name): value for name, value in found[0].items()}
