"""The sandbox does what it promises; without bubblewrap these tests are skipped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from towline.sandbox.base import Limits, Ran
from towline.sandbox.choice import Choice, choose_sandbox
from towline.sandbox.confined import Supervised
from towline_once.errors import NotIsolated

DEADLINE = 60.0
SECRET = "a secret of the service"
DETACHED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid(); time.sleep(600)
    os._exit(0)
"""


@pytest.fixture
def sandbox(isolation: Choice) -> Supervised:
    return isolation.sandbox


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


async def python(sandbox: Supervised, folder: Path, code: str, **limits: object) -> Ran:
    asked = Limits(**{"seconds": 20.0, **limits})  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE):
        return await sandbox.run([sys.executable, "-c", code], folder, asked)


def survivors(mark: str) -> list[str]:
    """Processes that carry the mark on their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes()
        except OSError:
            continue
        if mark.encode() in line and int(place.parent.name) != os.getpid():
            found.append(line.decode(errors="replace"))
    return found


async def test_a_command_is_run(sandbox: Supervised, folder: Path) -> None:
    """It reads what it is given, writes to its folder, and its status and output come back."""
    code = "import sys; open('made', 'w').write(sys.stdin.read()); print('out'); sys.exit(3)"
    ran = await sandbox.run([sys.executable, "-c", code], folder, Limits(), stdin=b"given")
    assert (ran.status, ran.output, ran.timed_out, ran.trouble) == (3, "out\n", False, None)
    assert (folder / "made").read_text() == "given"
    missing = await sandbox.run(["no-such-program"], folder, Limits())
    assert missing.status == 127


async def test_nothing_of_our_environment_is_passed_on(
    sandbox: Supervised, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the few variables that programs need, and those that were given."""
    monkeypatch.setenv("TOWLINE_GITHUB__TOKEN", SECRET)
    ran = await sandbox.run(["env"], folder, Limits(), environment={"CI": "1"})
    names = {line.partition("=")[0] for line in ran.output.splitlines()}
    assert names - {"PWD"} == {"PATH", "HOME", "TMPDIR", "LANG", "CI"}
    assert SECRET not in ran.output


async def test_the_machine_is_out_of_reach(
    sandbox: Supervised, folder: Path, tmp_path: Path
) -> None:
    """No file beside its own is read or written, no process is seen or signalled."""
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "token").write_text(SECRET)
    (folder / "link").symlink_to(beside / "token")
    code = f"""
import os, glob
def attempt(name, act):
    try: print(name, act())
    except OSError as error: print(name, type(error).__name__)
attempt('read', lambda: open({str(beside / "token")!r}).read())
attempt('link', lambda: open('link').read())
attempt('write', lambda: open({str(beside / "new")!r}, 'w'))
attempt('list', lambda: os.listdir({str(beside)!r}))
attempt('etc', lambda: open('/etc/made-by-a-test', 'w'))
attempt('shadow', lambda: open('/etc/shadow').read())
attempt('environment', lambda: open('/proc/{os.getpid()}/environ').read())
attempt('signal', lambda: os.kill({os.getpid()}, 0))
attempt('mount', lambda: print(os.system('mount -t tmpfs none /usr 2>/dev/null')))
seen = b''
for place in glob.glob('/proc/[0-9]*/environ'):
    try: seen += open(place, 'rb').read()
    except OSError: pass
print('seen', b'PYTEST_CURRENT_TEST' in seen)
"""
    ran = await python(sandbox, folder, code)
    assert ran.status == 0, ran
    told = dict(line.split(" ", 1) for line in ran.output.splitlines() if " " in line)
    for name in ("read", "link", "write", "list", "etc", "shadow", "environment", "signal"):
        assert told[name].endswith("Error"), (name, told)
    assert told["seen"] == "False"
    assert "0" not in ran.output.splitlines(), "it could mount something"
    assert [one.name for one in beside.iterdir()] == ["token"]


async def test_there_is_no_network(sandbox: Supervised, folder: Path) -> None:
    """A server of the machine cannot be reached; a loopback of its own works."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"""
import socket
for address in (('127.0.0.1', {port}), ('192.0.2.1', 80)):
    try:
        socket.create_connection(address, 2); print('reached')
    except OSError as error: print('cut')
own = socket.create_server(('127.0.0.1', 0))
socket.create_connection(own.getsockname(), 2); print('own')
"""
    ran = await python(sandbox, folder, code)
    open_ran = await python(sandbox, folder, code.partition("own =")[0], network=True)
    server.close()
    await server.wait_closed()
    assert ran.output.split() == ["cut", "cut", "own"]
    assert open_ran.output.split()[0] == "reached"


ENDLESS: dict[str, tuple[str, dict[str, object]]] = {
    "sleeps": ("import time; time.sleep(600)", {}),
    "ignores signals": (
        "import signal as s\nfor n in (1, 2, 3, 15): s.signal(n, s.SIG_IGN)\nwhile True: s.pause()",
        {},
    ),
    "is detached twice": (
        f"{DETACHED}\nos.wait(); time.sleep(600)",
        {},
    ),
    "writes for ever": ("while True: print('x' * 10000)", {"output_bytes": 1000}),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_everything_ends_by_its_deadline(
    sandbox: Supervised, folder: Path, case: str
) -> None:
    """Whatever it does about it; nothing of it runs on, and little of its output is kept."""
    code, limits = ENDLESS[case]
    mark = f"mark-{os.getpid()}-{id(folder)}"
    ran = await python(sandbox, folder, f"# {mark}\n{code}", seconds=1.5, **limits)
    assert (ran.status, ran.timed_out) == (None, True)
    assert "took longer than 1.5 s" in ran.output
    assert len(ran.output) < 2000
    assert survivors(mark) == []


async def test_what_detaches_itself_ends_with_the_command(
    sandbox: Supervised, folder: Path
) -> None:
    """The command has ended well; the daemon that it left has no future."""
    mark = f"mark-{os.getpid()}-{id(folder)}"
    ran = await python(sandbox, folder, f"# {mark}\n{DETACHED}\nprint('done')")
    assert (ran.status, ran.output) == (0, "done\n")
    assert survivors(mark) == []


MEMORY_FILES = """
import os, time
while True:
    os.write(os.memfd_create("x"), bytes(1 << 23)); time.sleep(0.01)
"""
NAMELESS_FILES = """
import os, time
while True:
    fd = os.open("x", os.O_RDWR | os.O_CREAT); os.unlink("x")
    os.write(fd, bytes(1 << 20)); time.sleep(0.01)
"""
GREEDY: dict[str, tuple[str, dict[str, object], str]] = {
    "memory": (
        "import os, time\nos.fork(), os.fork()\nheld = bytearray(60_000_000); time.sleep(600)",
        {"memory_bytes": 150_000_000},
        "bytes of memory",
    ),
    "memory that is shared": (
        "import mmap, time\nm = mmap.mmap(-1, 1 << 28); m.write(bytes(1 << 28)); time.sleep(600)",
        {"memory_bytes": 150_000_000},
        "bytes of memory",
    ),
    "memory that nobody maps": (
        MEMORY_FILES,
        {"memory_bytes": 150_000_000},
        "bytes of memory",
    ),
    "files without a name": (
        NAMELESS_FILES,
        {"disk_bytes": 30_000_000},
        "30000000 bytes",
    ),
    "processes": (
        "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.1)",
        {"processes": 50},
        "50 processes",
    ),
    "disk": (
        "n = 0\nwhile True:\n n += 1\n open(f'{n}', 'wb').write(b'x' * 1_000_000)",
        {"disk_bytes": 30_000_000},
        "30000000 bytes",
    ),
}


@pytest.mark.parametrize("case", GREEDY)
async def test_who_takes_too_much_is_ended(sandbox: Supervised, folder: Path, case: str) -> None:
    """By what all of its processes use together."""
    code, limits, words = GREEDY[case]
    mark = f"mark-{os.getpid()}-{id(folder)}"
    ran = await python(sandbox, folder, f"# {mark}\n{code}", **limits)
    if ran.timed_out:  # the kernel held it down before the watch saw too many
        assert case == "processes"
    else:
        assert ran.status is None
        assert words in ran.output
    assert survivors(mark) == []


async def test_what_is_shared_counts_once(sandbox: Supervised, folder: Path) -> None:
    """Several processes over one piece of memory, as a database has them, are not too much."""
    code = (
        "import mmap, os, time\nheld = mmap.mmap(-1, 60_000_000)\nheld.write(bytes(60_000_000))\n"
        "for _ in range(4):\n if os.fork() == 0: sum(held[::4096]); time.sleep(1.5); os._exit(0)\n"
        "for _ in range(4): os.wait()\nprint('done')"
    )
    ran = await python(sandbox, folder, code, memory_bytes=150_000_000)
    assert (ran.status, ran.output) == (0, "done\n")


SEGMENTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def segment(size):
    made = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
    return "made" if made >= 0 else ctypes.get_errno()
queue = libc.msgget(0, 0o1600)
print(segment(56), segment(4096), segment(4097), segment(1 << 33), queue)
"""


async def test_memory_that_no_process_holds_is_refused(sandbox: Supervised, folder: Path) -> None:
    """System V segments beyond a page, and queues: "no space left", as at the system's limit."""
    ran = await python(sandbox, folder, SEGMENTS)
    assert ran.output.split() == ["made", "made", "28", "28", "-1"], ran


async def test_a_command_is_passed_on_as_it_is(sandbox: Supervised, folder: Path) -> None:
    """Also words that the sandbox has a use for itself."""
    ran = await sandbox.run(["echo", "{status}", "{refused}"], folder, Limits(seconds=20))
    assert ran.output == "{status} {refused}\n", ran


async def test_one_file_cannot_be_too_large(sandbox: Supervised, folder: Path) -> None:
    """Its writer fails, at the limit."""
    code = "open('big', 'wb').truncate(50_000_000)"
    ran = await python(sandbox, folder, code, disk_bytes=10_000_000)
    assert ran.status not in (0, None)
    assert (folder / "big").stat().st_size <= 10_000_000


async def test_who_is_cancelled_leaves_nothing(sandbox: Supervised, folder: Path) -> None:
    """The command ends with the task that waits for it."""
    mark = f"mark-{os.getpid()}-{id(folder)}"
    code = f"# {mark}\nopen('begun', 'w').close()\nimport time; time.sleep(600)"
    running = asyncio.create_task(python(sandbox, folder, code))
    await _until((folder / "begun").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _until(lambda: not survivors(mark))


async def test_who_loses_the_service_leaves_nothing(folder: Path) -> None:
    """A service that is killed takes its commands with it."""
    mark = f"mark-{os.getpid()}-{id(folder)}"
    code = f"# {mark}\nopen('begun', 'w').close()\nimport time; time.sleep(600)"
    service = f"""
import asyncio, sys
from pathlib import Path
from towline.sandbox.base import Limits
from towline.sandbox.confined import Supervised
asyncio.run(Supervised().run([sys.executable, "-c", {code!r}], Path({str(folder)!r}), Limits()))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", service)
    await _until((folder / "begun").exists)
    process.kill()
    await process.wait()
    await _until(lambda: not survivors(mark))


async def test_other_folders_may_be_opened_to_it(
    sandbox: Supervised, folder: Path, tmp_path: Path
) -> None:
    """What is named as writable is, and nothing else is."""
    cache = tmp_path / "cache"
    cache.mkdir()
    code = f"open({str(cache / 'kept')!r}, 'w').write('yes')"
    assert (await python(sandbox, folder, code)).status == 1
    assert (await python(sandbox, folder, code, writable=[cache])).status == 0
    assert (cache / "kept").read_text() == "yes"


async def test_a_folder_that_is_gone_is_trouble_of_the_sandbox(
    sandbox: Supervised, tmp_path: Path
) -> None:
    """It does not pass for a failure of the command."""
    ran = await sandbox.run(["true"], tmp_path / "gone", Limits(seconds=10))
    assert ran.status is None
    assert ran.trouble is not None


async def test_bubblewrap_is_chosen_with_a_reason(isolation: Choice) -> None:
    """One line for the log, which names the sandbox."""
    choice = await choose_sandbox()
    assert choice.reason.startswith("sandbox: bubblewrap")
    assert choice.missing == isolation.missing == ()
    assert "\n" not in choice.reason


async def test_without_bubblewrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the package's name, for three families of Linux."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotIsolated, match="bubblewrap is not installed") as refused:
        await choose_sandbox()
    assert "\n" not in str(refused.value)
    for words in ("apt-get install bubblewrap", "dnf install bubblewrap", "apk add bubblewrap"):
        assert words in refused.value.fix


async def test_a_bubblewrap_that_does_not_work_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried out, not taken at its word; the refusal says what to allow."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho No permissions to create namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotIsolated, match="No permissions") as refused:
        await choose_sandbox()
    assert "user" in refused.value.fix
    assert "install" not in refused.value.fix
    choice = await choose_sandbox(required=False)
    assert choice.missing == ("files", "network", "processes")
    assert "No permissions" in choice.reason


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not true():  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.02)
