"""The system's Chromium, if there is one."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)
