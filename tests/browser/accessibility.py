"""What axe-core says of a page."""

from __future__ import annotations

from pathlib import Path

import axe_playwright_python
from playwright.async_api import Page

_AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")


async def grave_faults(page: Page) -> list[object]:
    """The serious and the critical ones, each with some of the places that have it."""
    await page.evaluate(_AXE.read_text(encoding="utf-8"))
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
