"""Ten processes submit the same keys to one database at the same moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.submit.submitting import Mesh
from towline_once.db.statement import Database

ROOT = Path(__file__).resolve().parents[2]
KEYS = 20
SUBMITTER = f"""
import asyncio, json, sys
from tests.submit.submitting import Mesh
from towline_once.clock import SystemClock
from towline.db import database_for

async def main():
    database = database_for(sys.argv[1], SystemClock(), timeout=60)
    mesh = Mesh(database, SystemClock())
    await mesh.submit("warm")
    print("ready", flush=True)
    sys.stdin.readline()
    receipts = await asyncio.gather(*[mesh.submit(f"key-{{n}}") for n in range({KEYS})])
    print(json.dumps([(receipt.status, receipt.job_id) for receipt in receipts]), flush=True)
    await database.aclose()

asyncio.run(main())
"""


def start(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
async def test_ten_processes(database: Database, clock: ManualClock, sql_url: str) -> None:
    """Each key is accepted from one of them and queued once; the others are told of that job."""
    crew = [start(sql_url) for _ in range(10)]
    for child in crew:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in crew:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(child.communicate(timeout=60)[0]) for child in crew]
    for told in zip(*answers, strict=True):
        assert sorted(status for status, _ in told) == ["accepted"] + ["in_progress"] * 9
        assert len({job_id for _, job_id in told}) == 1
    assert await Mesh(database, clock).queued() == KEYS + 1
