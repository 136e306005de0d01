"""Hostile programs get at nothing of the machine."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.test_sandboxes import SECRET, folder, python, sandbox
from tests.unisolated import UNISOLATED
from towline.sandbox import calls
from towline.sandbox.base import Limits
from towline.sandbox.choice import Choice, MachineSandbox, choose_sandbox
from towline.sandbox.confined import Supervised
from towline_once.errors import NotIsolated

__all__ = ["folder", "sandbox"]

ATTEMPTS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, act):
    try: found = act()
    except OSError as error: found = None
    print(name, "refused" if found is None or found == -1 else "done", flush=True)
"""
FILES = """
kept = {kept!r}
attempt("home", lambda: set(os.listdir({home!r})) - kept or None)
for name, path in {paths!r}.items():
    attempt(name, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read())
"""
PROCESSES = """
PTRACE_ATTACH, ME = 16, {pid}
def ptrace(pid): return libc.ptrace(PTRACE_ATTACH, pid, None, None)
def memory(pid): return os.open(f"/proc/{{pid}}/mem", os.O_RDWR)
attempt("signal", lambda: os.kill(ME, 0))
attempt("ptrace", lambda: ptrace(ME))
attempt("environment", lambda: open(f"/proc/{pid}/environ").read())
attempt("memory", lambda: memory(ME))
attempt("descriptors", lambda: [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3] or None)
attempt("root-of-the-first", lambda: open("/proc/1/root/etc/shadow").read())
def power():
    told = dict(line.rstrip().partition(":\\t")[::2] for line in open("/proc/1/status"))
    return None if int(told["CapEff"], 16) == 0 and told["Seccomp"] == "2" else memory(1)
attempt("power-of-the-first", power)
"""
KERNEL = """
NEW_USER, CHILD = 0x10000000, 17
x86 = os.uname().machine == "x86_64"
numbers = (272, 56, 248, 249, 250) if x86 else (97, 220, 217, 218, 219)
unshare, clone, add_key, request_key, keyctl = numbers
def call(number, *given):
    ctypes.set_errno(0)
    ended = libc.syscall(number, *given)
    if ended == 0 and number in (clone, 435): os._exit(0)
    return f"{ended} {os.strerror(ctypes.get_errno())}"
class Clone(ctypes.Structure):
    names = "flags pidfd child parent signal stack size tls"
    _fields_ = [(name, ctypes.c_uint64) for name in names.split()]
wanted = Clone(flags=NEW_USER, signal=CHILD)
print("unshare", call(unshare, ctypes.c_ulong(NEW_USER | 0x20000)))
print("clone", call(clone, ctypes.c_ulong(NEW_USER | CHILD), 0, 0, 0, 0))
print("clone3", call(435, ctypes.byref(wanted), ctypes.sizeof(wanted)))
print("add_key", call(add_key, b"user", b"x", b"y", 1, -2))
print("request_key", call(request_key, b"user", b"x", None, 0))
print("keyctl", call(keyctl, 0, -3, 0))
print("io_uring_setup", call(425, 4, ctypes.create_string_buffer(200)))
print("io_uring_enter", call(426, -1, 0, 0, 0, 0))
print("io_uring_register", call(427, -1, 0, 0, 0))
import subprocess, threading
thread = threading.Thread(target=print, args=("thread runs",)); thread.start(); thread.join()
print("child", subprocess.run(["true"]).returncode)
"""
REFUSED = {
    **dict.fromkeys(("unshare", "clone"), "Operation not permitted"),
    **dict.fromkeys(("add_key", "request_key", "keyctl"), "Operation not permitted"),
    **dict.fromkeys(("io_uring_setup", "io_uring_enter", "io_uring_register"), "Operation not"),
    "clone3": "Function not implemented",
}


async def test_files_of_the_machine_are_not_there(
    sandbox: Supervised, folder: Path, tmp_path: Path
) -> None:
    """No password file, home, database, private key, socket of a service or other repository."""
    database = tmp_path / "towline.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE secrets (text)")
    other = tmp_path / "work" / ".." / "other-repository"
    other.mkdir()
    (other / "token").write_text(SECRET)
    paths = {
        "shadow": "/etc/shadow",
        "database": str(database),
        "other-repository": str(other / "token"),
        "private-keys": "/etc/ssl/private",
        "hosts-keys": "/etc/ssh",
        "runtime": "/run",
        "logs": "/var/log",
        "disks": "/dev/sda",
        "kernel": "/sys/kernel",
        "machine-memory": "/dev/mem",
        "settings": f"/proc/{os.getpid()}/cwd",
    }
    home = Path.home()  # where Python itself may be installed, which is needed
    inside = [Path(one) for one in sandbox.readable(network=False)]
    kept = {one.relative_to(home).parts[0] for one in inside if home in one.parents}
    hostile = ATTEMPTS + FILES.format(paths=paths, home=str(home), kept=kept)
    ran = await python(sandbox, folder, hostile)
    assert ran.status == 0, ran
    told = dict(line.split() for line in ran.output.splitlines())
    assert told == dict.fromkeys(["home", *paths], "refused")


async def test_services_of_the_machine_are_not_reached(
    sandbox: Supervised, folder: Path, tmp_path: Path
) -> None:
    """Neither by a socket in the file system, as a database has one, nor by an abstract one."""
    with contextlib.ExitStack() as stack:
        for address in (str(tmp_path / "socket"), f"\0towline-{os.getpid()}"):
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(address)
            listening.listen()
            code = f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})"
            ran = await python(sandbox, folder, code)
            assert ran.status == 1, (address, ran)
            assert "Error" in ran.output


async def test_processes_of_the_machine_are_out_of_reach(sandbox: Supervised, folder: Path) -> None:
    """Neither signals nor ptrace reach one, and neither its environment nor memory is read."""
    ran = await python(sandbox, folder, ATTEMPTS + PROCESSES.format(pid=os.getpid()))
    assert ran.status == 0, ran
    told = dict(line.split() for line in ran.output.splitlines())
    assert set(told.values()) == {"refused"}, told


async def test_the_kernel_is_kept_out_of_reach(sandbox: Supervised, folder: Path) -> None:
    """User namespaces, keyrings and io_uring are refused; threads and children work as ever."""
    ran = await python(sandbox, folder, ATTEMPTS + KERNEL)
    told = dict(line.split(" ", 1) for line in ran.output.splitlines())
    assert (told.pop("thread"), told.pop("child")) == ("runs", "0"), ran
    assert told.keys() == REFUSED.keys()
    for name, reason in REFUSED.items():
        assert told[name].startswith(f"-1 {reason}"), (name, told)


async def test_unshare_of_a_shell_is_refused(sandbox: Supervised, folder: Path) -> None:
    """As a build script would try it."""
    ran = await sandbox.run(["unshare", "--user", "--map-root-user", "id"], folder, Limits())
    assert ran.status not in (0, None)
    assert "uid=0" not in ran.output


def test_an_unknown_machine_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the numbers of the calls are not known nothing is refused, and that counts."""
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    assert not calls.known()
    assert len(calls.program(own_segments=True)) == 8


async def test_own_files_must_not_lie_where_commands_read(isolation: Choice) -> None:
    """A database below a folder that every command sees is no isolation of files."""
    inside = Path(sys.prefix, "towline.db")
    with pytest.raises(NotIsolated, match=r"towline\.db lies in .* which every command"):
        await choose_sandbox(own=[inside])
    assert "files" in (await choose_sandbox(required=False, own=[inside])).missing


WITHOUT = """
import asyncio, sys, tempfile
from pathlib import Path
from towline_once.errors import NotIsolated
from towline.sandbox.base import Limits
from towline.sandbox.choice import MachineSandbox
async def main():
    machine, folder = MachineSandbox(sys.argv[1]), Path(tempfile.mkdtemp())
    try:
        ran = await machine.run(["touch", "made"], folder, Limits(seconds=20))
        print("ran", ran.status, (folder / "made").exists(), machine.warning)
    except NotIsolated as refusal:
        print("refused", (folder / "made").exists(), refusal)
asyncio.run(main())
"""


@pytest.mark.parametrize("path", ["/nowhere", os.environ["PATH"]])
def test_without_isolation_nothing_is_run(path: str) -> None:
    """The reason names what is missing, and what to install or to allow."""
    said = _without("required", path)
    assert said.startswith("refused False this machine cannot isolate code of a repository")
    assert "user namespaces" in said
    assert ("apt-get install bubblewrap" in said) == ("bubblewrap is not installed" in said)


def test_the_settings_may_do_without() -> None:
    """`none` runs it all the same, with a warning that names what is not isolated."""
    said = _without("none", "/nowhere")
    assert said.startswith('ran 0 True fix.sandbox is "none"')
    assert "does not isolate files, network, processes" in said


def _without(isolation: str, path: str) -> str:
    ran = subprocess.run(
        [*UNISOLATED, sys.executable, "-c", WITHOUT, isolation],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout


async def test_what_is_installed_meanwhile_is_found(tmp_path: Path, isolation: Choice) -> None:
    """A refusal is not kept: once the database was moved, the next run finds its sandbox."""
    wrong, database = Path(sys.prefix), tmp_path / "link"
    database.symlink_to(wrong / "towline.db")
    machine = MachineSandbox("required", own=[database])
    with pytest.raises(NotIsolated):
        await machine.check()
    before = machine.trouble
    database.unlink()
    assert (await machine.run(["true"], tmp_path, Limits(seconds=20))).succeeded
    assert "towline.db lies in" in (before or "")
    assert machine.trouble is None


VANISHING = """
import asyncio, os, sys
from pathlib import Path
from towline_once.errors import NotIsolated
from towline.sandbox.base import Limits
from towline.sandbox import calls
from towline.sandbox.choice import MachineSandbox
async def main():
    machine, folder = MachineSandbox("required"), Path(sys.argv[1])
    print("before", (await machine.run(["true"], folder, Limits(seconds=20))).status)
    calls.refuse(own_segments=True)  # from here on this process is refused user namespaces
    try:
        print("after", await machine.run(["touch", "made"], folder, Limits(seconds=20)))
    except NotIsolated as refusal:
        print("refused", (folder / "made").exists(), machine.trouble == str(refusal))
asyncio.run(main())
"""


@pytest.mark.usefixtures("isolation")
def test_isolation_that_vanishes_is_a_refusal(tmp_path: Path) -> None:
    """A process that chose its sandbox before notices, and needs no restart to say so."""
    ran = subprocess.run(
        [sys.executable, "-c", VANISHING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.splitlines() == ["before 0", "refused False True"]
