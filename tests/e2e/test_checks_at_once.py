"""Checks of many pull requests that are told at once, to the running service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.checks_at_once import AUTHOR, Count, counted, lives, shuffled, told
from tests.e2e.programs import Program
from tests.e2e.senders import SECRET

PULLS = 60
CROWD = 200


def settings_for(url: str) -> dict[str, str]:
    """The defaults, with the secret and the author that a tow needs."""
    return {
        "TOWLINE_DATABASE_URL": url,
        "TOWLINE_GITHUB__WEBHOOK_SECRETS": json.dumps([SECRET]),
        "TOWLINE_TOW__AUTHORS": json.dumps([AUTHOR]),
    }


@pytest.mark.timeout(300)
async def test_a_pull_request_is_never_green_while_a_check_is_not(
    sql_url: str, tmp_path: Path
) -> None:
    """Sixty at once, the checks of each in any order: each ends where its checks do."""
    known = lives(PULLS, seed=20)
    with Program(tmp_path, settings_for(sql_url), "serve") as door:
        await told(sql_url, door.port, [life.opening for life in known])
        checks = shuffled([parcel for life in known for parcel in life.checks], seed=29)
        states = await told(sql_url, door.port, checks)
    assert counted(known, states) == Count(right=PULLS, false_green=0, created=0, other=0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", ["as they happened", "opened anywhere"])
async def test_a_check_that_comes_before_its_pull_request_counts(
    sql_url: str, tmp_path: Path, order: str
) -> None:
    """Two hundred opened and checked at once, nothing waits for anything: each ends right."""
    known = lives(CROWD, seed=21)
    parcels = [parcel for life in known for parcel in (life.opening, *life.checks)]
    if order == "opened anywhere":
        parcels = shuffled(parcels, seed=31)
    with Program(tmp_path, settings_for(sql_url), "serve") as door:
        states = await told(sql_url, door.port, parcels)
    assert counted(known, states) == Count(right=CROWD, false_green=0, created=0, other=0)
