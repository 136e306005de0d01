"""Runs a program as on a machine that allows no user namespaces: bubblewrap fails there, too.

`[*UNISOLATED, program, …]` is a command line. It sets the sandbox's own filter of system calls,
which refuses user namespaces to the program and to all that comes of it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

UNISOLATED = [sys.executable, str(Path(__file__).resolve())]


def main(command: list[str]) -> None:
    from towline.sandbox import calls

    if not calls.refuse(own_segments=True):
        raise SystemExit("this kernel has no seccomp")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
