"""Whatever is sent to the running service: documented answers, and never a 5xx."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path

import pytest

from tests.openapi.fuzzed_service import fill, fuzz, running

CASES = int(os.environ.get("TOWLINE_TEST_SCHEMATHESIS_CASES", "400"))
"""How many requests at least. `make schemathesis` and `make proof` send 10,000."""
_OPERATIONS = 30
_LIMITS = 1_300
"""Requests at the limits of each parameter; they are sent where so many are wanted."""


@pytest.mark.slow
@pytest.mark.timeout(300 + CASES // 2)
def test_anything_that_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All checks of schemathesis, over HTTP, on a service with something of everything in it."""
    asyncio.run(fill(f"sqlite:///{tmp_path / 'towline.db'}"))
    with running(tmp_path) as url:
        limits = CASES >= _LIMITS
        drawn = CASES - _LIMITS if limits else CASES
        figures = fuzz(url, tmp_path, max(1, math.ceil(drawn / _OPERATIONS)), limits=limits)
    with capsys.disabled():
        sys.stdout.write(f"schemathesis: {figures.cases} requests\n")
    assert figures.failures == [], (tmp_path / "schemathesis.log").read_text()[-20_000:]
    assert figures.cases >= CASES
