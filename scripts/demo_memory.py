"""Run `towline demo` at its usual speed, and print its memory and its folder's size every minute.

python -m scripts.demo_memory --minutes 60
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=int, default=60)
    minutes = options.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        words = ["demo", "--port", "0", "--no-browser", "--for", str(minutes * 60 + 30)]
        demo = subprocess.Popen(
            [sys.executable, "-m", "towline", *words], env={**os.environ, "TMPDIR": folder}
        )
        try:
            most = 0.0
            for minute in range(1, minutes + 1):
                time.sleep(60)
                resident = _resident_mb(demo.pid)
                most = max(most, resident)
                print(
                    f"{minute} min: {resident:.0f} MB resident, {_stored_mb(folder):.0f} MB stored"
                )
                sys.stdout.flush()
            print(f"at most {most:.0f} MB resident")
        finally:
            demo.terminate()
            demo.wait(60)


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _stored_mb(folder: str) -> float:
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6


if __name__ == "__main__":
    main()
