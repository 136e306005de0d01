"""Traces five ways through the running program, and prints them room by room.

    make walk                        all five
    make walk WALK_ARGS="comment"    one of them: webhook, sweep, fix, comment or library

The service, its SQLite file and its HTTP are real. GitHub and Jenkins are simulated and are reached
over HTTP. The profiler of the interpreter sees each call of a function of ours; nothing is patched.
`tests/test_walk.py` checks on the same ways that one room calls another in one direction, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import opcode
import sys
import tempfile
import threading
import tomllib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from tests.e2e.tow_over_http import Place

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the towns of the tests stand in for the world

HOMES: Final = {
    f"{ROOT}/src/towline/": "",
    f"{ROOT}/packages/towline-once/src/towline_once/": "once/",
}
"""Where our code is, and what the names of its files begin with here."""
OUTSIDE: Final = (f"{ROOT}/packages/towline-sim/", f"{ROOT}/tests/", f"{ROOT}/scripts/")
"""What plays the world. A function of ours that it calls is part of the world, not of the way."""
ASIDE: Final = {
    "": "events.py, the vocabulary of all rooms",
    "http": "every route uses its keys, problems and bodies",
    "observability": "every room writes logs and audit lines",
    "once": "keys, clock and errors, the vocabulary of the library",
    "once/db": "the store",
}
"""Rooms that all others call all the time, with the reason why that says nothing."""
_STORES: Final = ("store", "sql", "metrics", "memory", "redis")
_WIDTH: Final = 100
_DEADLINE_SECONDS: Final = 120
_CALLBACK: Final = asyncio.Handle._run.__code__
"""Above this frame is the event loop, which is no caller."""
_RESUME: Final = opcode.opmap.get("RESUME", -1)


class Entry(NamedTuple):
    """A call of a function in one module by a function in another."""

    task: str
    caller: str
    """The module that calls; empty if it is the event loop, or a library."""
    module: str
    function: str


@dataclass
class Way:
    """What one walk met."""

    files: set[str] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    says: dict[tuple[str, str], str] = field(default_factory=dict)
    """For each module and function the first line of its docstring, or of the module's."""

    def doors(self, *, library: bool = False) -> dict[str, set[str]]:
        """For each room the rooms that call into it; the event loop only resumes what they began.

        Stores and pure rules do not count, nor what a store calls because it was given it. For
        the product the library does not count either, as it is not a room of the product; on the
        way through the library only its rooms do.
        """
        found: dict[str, set[str]] = {}
        for _, caller, module, _ in self.entries:
            room, of_caller = room_of(module), room_of(caller)
            if not caller or is_aside(caller) or is_aside(module) or room in ASIDE:
                continue
            if room != of_caller and is_library(module) == library:
                found.setdefault(room, set()).add(of_caller)
        return found


def room_of(module: str) -> str:
    """The folder of a module: `pulls`, `once/idempotency`. The library's root is `once`."""
    first, *rest = module.split("/")
    if first != "once":
        return first if rest else ""
    return f"once/{rest[0]}" if len(rest) > 1 else "once"


def is_library(module: str) -> bool:
    return module.startswith("once/")


@functools.cache
def pure_modules() -> frozenset[str]:
    """The modules that the import contract lists as pure."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (listed,) = (one["source_modules"] for one in contracts if one["name"].startswith("Pure"))
    short = {"towline": "", "towline_once": "once/"}
    split = (str(name).split(".") for name in listed)
    return frozenset(short[top] + "/".join(rest) for top, *rest in split)


def is_aside(module: str) -> bool:
    """Stores, metrics and pure rules: other rooms may call them as often as they like."""
    last = module.rpartition("/")[2]
    return last.endswith(_STORES) or module in pure_modules()


@functools.cache
def _module_of(file: str) -> str | None:
    for home, prefix in HOMES.items():
        if file.startswith(home):
            return prefix + file.removeprefix(home).removesuffix(".py").removesuffix("/__init__")
    return None


def _is_start(frame: FrameType) -> bool:
    """False if a coroutine or a generator only goes on."""
    at = frame.f_lasti
    if at < 0:
        return True
    code = frame.f_code.co_code
    return code[at] == _RESUME and code[at + 1] & 3 == 0


class Tracer:
    """Writes down each call from one module of ours into another, in every task and thread."""

    def __init__(self, *, users_call: bool = False) -> None:
        """`users_call` if what this script calls is the way; otherwise the world comes to it."""
        self.way = Way()
        self._users_call = users_call
        self._on = False
        self._met: set[Entry] = set()

    def __enter__(self) -> Tracer:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextlib.contextmanager
    def recording(self) -> Iterator[Way]:
        self._on = True
        try:
            yield self.way
        finally:
            self._on = False

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._on:
            return
        module = _module_of(frame.f_code.co_filename)
        if module is None or not _is_start(frame) or frame.f_code.co_name == "<module>":
            return
        caller = self._caller_of(frame)
        if caller is None:
            return
        self.way.files.add(frame.f_code.co_filename)
        if caller == module:
            return
        entry = Entry(_task(), caller, module, frame.f_code.co_qualname.replace(".<locals>", ""))
        if entry not in self._met:
            self._met.add(entry)
            self.way.entries.append(entry)
            self.way.says.setdefault((module, entry.function), _said(frame))

    def _caller_of(self, frame: FrameType) -> str | None:
        """The module of ours that made this call; empty for the loop, None for the world."""
        found, above = "", frame.f_back
        while above is not None and above.f_code is not _CALLBACK:
            file = above.f_code.co_filename
            found = found or _module_of(file) or ""
            if file.startswith(OUTSIDE):
                return found if self._users_call else None
            above = above.f_back
        return found


def _task() -> str:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return f"thread {threading.current_thread().name}"
    return task.get_name() if task is not None else "event loop"


def _said(frame: FrameType) -> str:
    """What the function says of itself, else its module."""
    consts = frame.f_code.co_consts
    said = consts[0] if consts and isinstance(consts[0], str) else None
    if not said or " " not in said:
        said = str(frame.f_globals.get("__doc__") or "")
    return inspect.cleandoc(said).partition("\n")[0]


# ------------------------------------------------------------------ the five ways

_Record = Callable[[], contextlib.AbstractContextManager[Way]]


async def webhook(folder: Path, record: _Record) -> None:
    """A `check_run` webhook: GitHub reports a failed check of a pull request under tow."""
    from tests.e2e.tow_over_http import REPO, towing

    async with towing(_sqlite(folder)) as place:
        pull = await place.open_fix("CVE-2024-1001")
        await place.until(pull.number, "CHECKS_RUNNING")
        run = {
            "id": 7_000_001, "name": "build", "head_sha": pull.head_sha, "status": "completed",
            "conclusion": "failure", "app": {"slug": "ci"}, "pull_requests": [],
        }  # fmt: skip
        about = {"action": "completed", "check_run": run, "repository": {"full_name": REPO}}
        with record():
            await _deliver(place, "check_run", about)


async def sweep(folder: Path, record: _Record) -> None:
    """A sweep that rebuilds: a build failed for a transient reason, and GitHub went silent."""
    async with _stuck(folder) as place:
        for hook in place.town.world.hooks(_repo()):
            place.town.world.delete_hook(_repo(), hook.id)
        with record():
            await asyncio.create_task(place.tow.service.reconciler.sweep())
            await place.quiet()
        assert place.asked_to_build(), "the sweep asked for no build"


async def fix(folder: Path, record: _Record) -> None:
    """A fix run: the linter fails on main, and Towline opens a pull request with the repair."""
    from tests.e2e.fix_over_http import break_it, fail_lint, fixing, our_branches
    from tests.e2e.tow_over_http import towing

    async with towing(_sqlite(folder), **fixing(folder)) as place:
        break_it(place)
        await place.quiet()
        with record():
            fail_lint(place)
            await place.quiet()
        assert our_branches(place), "the fix run opened no pull request"


async def comment(folder: Path, record: _Record) -> None:
    """A `/rebuild` comment of a developer on a pull request whose build failed."""
    async with _stuck(folder) as place:
        with record():
            place.town.world.comment(_repo(), 1, "octocat", "/rebuild")
            await place.quiet()
        assert place.asked_to_build(), "the comment asked for no build"


async def library(folder: Path, record: _Record) -> None:
    """`Idempotency.process` on SQLite: one run, and one replay of its result."""
    import towline_once

    async def handler() -> str:
        return "done"

    async def twice(idem: towline_once.Idempotency) -> list[bool]:
        key = towline_once.keys.Api("docs", "order-17")
        first = await idem.process(key, tenant="acme", payload={"order": 17}, handler=handler)
        again = await idem.process(key, tenant="acme", payload={"order": 17}, handler=handler)
        return [first.processed, again.processed]

    async with towline_once.Idempotency.open(_sqlite(folder)) as idem:
        with record():
            ran = await asyncio.create_task(twice(idem), name="caller")
        assert ran == [True, False]


def _sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'towline.db'}"


def _repo() -> str:
    from tests.e2e.tow_over_http import REPO

    return REPO


@contextlib.asynccontextmanager
async def _stuck(folder: Path) -> AsyncIterator[Place]:
    """A service and one pull request whose build in Jenkins failed half an hour ago."""
    from tests.e2e.tow_over_http import MINUTE, towing
    from towline_sim.actors.scenario import Customs

    async with towing(_sqlite(folder), Customs(jenkins={"transient": 1.0})) as place:
        place.town.world.set_permission(_repo(), "octocat", "write")
        pull = await place.open_fix("CVE-2024-1001")
        await place.until(pull.number, "CHECKS_FAILED")
        await place.pass_time(31 * MINUTE)
        yield place


async def _deliver(place: Place, event: str, payload: Mapping[str, Any]) -> None:
    """Send one signed webhook to the service, and wait for what comes of it."""
    from towline_sim.github.webhooks import headers_of, target_of

    (hook,) = place.town.world.hooks(_repo())
    body = json.dumps(payload).encode()
    target = target_of(hook, place.town.world.repo(_repo()).id)
    headers = headers_of(target, str(uuid.uuid4()), event, body)
    answer = await place.tow.client.post("/webhooks/github", content=body, headers=headers)
    assert answer.status_code == 202, answer.text
    await place.quiet()


WAYS: Final[Mapping[str, Callable[[Path, _Record], Awaitable[None]]]] = {
    "webhook": webhook,
    "sweep": sweep,
    "fix": fix,
    "comment": comment,
    "library": library,
}


def walk(name: str, folder: Path) -> Way:
    """Run one of the ways in this folder, and return what it met."""
    with Tracer(users_call=name == "library") as tracer:
        asyncio.run(_in_time(WAYS[name](folder, tracer.recording)))
    return tracer.way


async def _in_time(way: Awaitable[None]) -> None:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        await way


# ------------------------------------------------------------------ printing


def lines_of(way: Way) -> Iterator[str]:
    """The rooms in the order in which they are entered, each module where it is first met.

    A blank line stands where another task, or a thread, takes over.
    """
    met: set[str] = set()
    task, room = "", None
    for entry in way.entries:
        if entry.module in met:
            continue
        met.add(entry.module)
        if task and entry.task != task:
            room = None
            yield ""
        task = entry.task
        if room != room_of(entry.module):
            room = room_of(entry.module)
            caller = room_of(entry.caller) if entry.caller else "the event loop, or a framework"
            yield f"  {room or 'towline'}  (called by {caller or 'towline'})"
        name = entry.module.removeprefix(f"{room}/")
        yield f"    {name:<20} {way.says[entry.module, entry.function]}"[:_WIDTH].rstrip()


def main(names: list[str]) -> None:
    for name in names or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            way = walk(name, Path(folder))
        print(f"{inspect.getdoc(WAYS[name])}\n")
        print("\n".join(lines_of(way)))
        print(f"\n  {len(way.files)} files. Rooms with more than one door:")
        for room, doors in sorted(way.doors(library=name == "library").items()):
            if len(doors) > 1:
                print(f"    {room} from {', '.join(sorted(doors))}")
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
