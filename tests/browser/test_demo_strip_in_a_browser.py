"""The strip of the demo, as somebody meets it who gives us five minutes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.accessibility import grave_faults
from tests.browser.conftest import DEADLINE_MS
from towline.cli.serve import bound
from towline_sim.demo.harness import Demo, demo_in

pytestmark = pytest.mark.slow
SLOW = 1.0
"""So slow that nothing happens by itself while a test looks."""
PAGES = ("/ui/", "/ui/health", "/ui/jobs")
STAYING = ("jenkins", "github", "webhooks", "approver", "pause", "faster")


@asynccontextmanager
async def demo_at(folder: Path) -> AsyncIterator[Demo]:
    with bound("127.0.0.1", 0) as listening:
        async with demo_in(folder, listening, SLOW) as demo:
            yield demo


async def entered(browser: Browser, demo: Demo, **options: object) -> Page:
    """By the link that is printed, and by nothing else."""
    context = await browser.new_context(base_url=demo.url, **options)  # type: ignore[arg-type]
    context.set_default_timeout(DEADLINE_MS)
    page = await context.new_page()
    await page.goto(demo.link)
    await expect(page.locator("#demo-strip")).to_be_visible()
    return page


async def leave(browser: Browser) -> None:
    for context in browser.contexts:
        await context.close()


async def test_levers_by_mouse_and_by_keyboard(tmp_path: Path, browser: Browser) -> None:
    """Each tells its position, and the page on which it was pulled stays in sight."""
    async with demo_at(tmp_path) as demo:
        page = await entered(browser, demo)
        await page.goto("/ui/health")
        await page.click("#lever-pause")
        await expect(page.locator("#lever-pause")).to_have_attribute("aria-pressed", "true")
        await expect(page.locator("#demo-strip dd").first).to_have_text("paused")
        assert page.url.startswith(f"{demo.url}/ui/health")
        await page.focus("#lever-pause")
        await page.keyboard.press("Enter")
        await expect(page.locator("#lever-pause")).to_have_attribute("aria-pressed", "false")
        await expect(page.locator("#demo-strip dd").first).to_contain_text("real time")
        await leave(browser)


async def test_without_javascript(tmp_path: Path, browser: Browser) -> None:
    """Levers are buttons of a plain form."""
    async with demo_at(tmp_path) as demo:
        page = await entered(browser, demo, java_script_enabled=False)
        await page.click("#lever-jenkins")
        await expect(page.locator("#lever-jenkins")).to_have_attribute("aria-pressed", "true")
        await leave(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_serious_fault_for_assistive_technology(
    tmp_path: Path, browser: Browser, scheme: str
) -> None:
    """axe-core finds none with every lever up and with every lever down."""
    async with demo_at(tmp_path) as demo:
        page = await entered(browser, demo, color_scheme=scheme)
        assert not await grave_faults(page)
        for name in STAYING:
            await page.click(f"#lever-{name}")
            await expect(page.locator(f"#lever-{name}")).to_have_attribute("aria-pressed", "true")
        for path in PAGES:
            await page.goto(path)
            await expect(page.locator("#demo-strip")).to_be_visible()
            found = await grave_faults(page)
            assert not found, (path, found)
        await leave(browser)


async def test_on_a_phone_nothing_sticks_out(tmp_path: Path, browser: Browser) -> None:
    """At 360 pixels the strip folds, and every lever can be hit by a thumb."""
    async with demo_at(tmp_path) as demo:
        page = await entered(browser, demo, viewport={"width": 360, "height": 740})
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        for name in STAYING:
            box = await page.locator(f"#lever-{name}").bounding_box()
            assert box is not None
            assert box["height"] >= 24, name
        await leave(browser)
