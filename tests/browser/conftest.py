"""A real browser before the real dashboard. Without a Chromium these tests are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.app.control_plane import KEY
from tests.browser.chromium import NAMES, executable
from tests.dashboard.dashboard_plane import DashboardPlane, dashboard_on
from tests.http.asgi_client import serving

DEADLINE_MS = 15_000
LEFT_BEHIND = ("htmx:sendAbort", "htmx:afterRequest")
"""What is said of a request that the next page ends."""


@dataclass
class Desk:
    """A signed-in browser, what is behind its pages, and what its console complained about."""

    plane: DashboardPlane
    browser: Browser
    base: str
    complaints: list[str] = field(default_factory=list)

    async def context(self, **options: object) -> BrowserContext:
        context = await self.browser.new_context(base_url=self.base, **options)  # type: ignore[arg-type]
        context.set_default_timeout(DEADLINE_MS)
        return context

    async def signed_in(self, key: str = KEY, **options: object) -> Page:
        page = await (await self.context(**options)).new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        await page.goto("/ui/")
        await page.fill("#key", key)
        await page.click("button.primary")
        await page.wait_for_url("**/ui/")
        return page

    def _hear(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        if kind in ("error", "warning") and text not in LEFT_BEHIND:
            self.complaints.append(f"{kind}: {text}")


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """The system's Chromium."""
    program = executable()
    if program is None:
        pytest.skip(f"no Chromium on the PATH: looked for {', '.join(NAMES)}")
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        await opened.close()


@pytest.fixture
async def desk(sqlite_url: str, browser: Browser) -> AsyncIterator[Desk]:
    """The console must have nothing to complain about at the end."""
    async with dashboard_on(sqlite_url) as plane, serving(plane.app()) as client:
        opened = Desk(plane, browser, str(client.base_url))
        yield opened
        for context in browser.contexts:
            await context.close()
    assert opened.complaints == []
