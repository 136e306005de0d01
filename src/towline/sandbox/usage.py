"""What processes hold: memory, disk, and files that have no name any more.

Loaded by the supervisor, which is a script without any path to import from: standard library only.
"""

from __future__ import annotations

import os
import stat

_PAGE = os.sysconf("SC_PAGE_SIZE")
_IN_MEMORY = "/memfd:"


def in_open_files(pids: list[int]) -> tuple[int, int]:
    """Bytes of files that are open and have no name: in memory (memfd), and on a disk.

    They are in no folder that could be measured, and no process need have them mapped.
    """
    in_memory, on_disk, seen = 0, 0, set()
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                place = os.readlink(f"{folder}/{name}")
                if not place.endswith(" (deleted)"):
                    continue
                facts = os.stat(f"{folder}/{name}")
            except OSError:
                continue
            if not stat.S_ISREG(facts.st_mode) or (facts.st_dev, facts.st_ino) in seen:
                continue
            seen.add((facts.st_dev, facts.st_ino))
            if place.startswith(_IN_MEMORY):
                in_memory += facts.st_blocks * 512
            else:
                on_disk += facts.st_blocks * 512
    return in_memory, on_disk


def memory_of(pids: list[int], limit: int) -> int:
    """What they hold together, at least; exactly, where it could be more than the limit.

    What several share counts once, and files that the kernel can drop do not count.
    """
    most = sum(_resident(pid) for pid in pids)
    return most if most <= limit else sum(_own_share(pid) for pid in pids)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _own_share(pid: int) -> int:
    """Its anonymous memory and its part of what is shared, such as memory that forks map."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return _private(pid)
    return total


def _private(pid: int) -> int:
    """What it shares with no other process: all that can be told where the kernel says no more."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            facts = file.read().split()
    except OSError:
        return 0
    return max(0, int(facts[1]) - int(facts[2])) * _PAGE


def disk_use(folders: list[str]) -> int:
    """Links are not followed, and what vanishes meanwhile is not counted."""
    total, waiting = 0, list(folders)
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total
