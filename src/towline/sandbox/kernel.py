"""What the kernel offers to whoever wants to hold less: namespaces, Landlock, resource limits.

Standard library only: it is loaded by file name in a process of its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import socket
import struct
from collections.abc import Iterable, Sequence

_CLONE = {
    "mount": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_MOST_CAPABILITIES = 64
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_LOCKED_FLAGS = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | 1024 | 2048
_MNT_DETACH = 2
_OWN_MOUNTS = (("/proc", "proc", ""), ("/dev/shm", "tmpfs", "size=64m"))  # noqa: S108  new ones
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 1, 0x40
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_READ = 0b1101
_ON_FILES = 0b1100000000000111
_INSIDE_ID = 1000

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> bool:
    try:
        return bool(_libc.prctl(option, value, 0, 0, 0) == 0)
    except AttributeError:
        return False


def become_subreaper() -> bool:
    """Orphans of our children become our children, so that none gets away."""
    return prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    prctl(_PR_SET_PDEATHSIG, 9)


def enter_namespaces(*, network: bool) -> bool:
    """A user, processes, mounts and names of our own, and a network of our own if there is none.

    The next child is the first process of the new ones.
    """
    uid, gid = os.geteuid(), os.getegid()
    wanted = [bit for name, bit in _CLONE.items() if not (network and name == "net")]
    try:
        if _libc.unshare(sum(wanted)) != 0:
            return False
        with open("/proc/self/setgroups", "w") as file:
            file.write("deny")
        for name, own in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(f"{_INSIDE_ID} {own} 1")
    except (AttributeError, OSError):
        return False
    return True


def raise_loopback() -> None:
    """A network of our own has one, which is down at first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            request = struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING)
            fcntl.ioctl(asking, _SIOCSIFFLAGS, request)
        except OSError:
            return  # then not even the loopback works, which is no danger


def enter_root(root: str, readable: Iterable[str], writable: Iterable[str]) -> bool:
    """A root with nothing in it but these, and processes of our own; in a mount namespace.

    Sockets in the file system cannot be reached from there either, which Landlock leaves open.
    """
    try:
        _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
        _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=16m,mode=755")
        for path in readable:
            _show(root, path, writing=False)
        for path in writable:
            _show(root, path, writing=True)
        for name, kind, options in _OWN_MOUNTS:
            os.makedirs(root + name, exist_ok=True)
            _mount(kind, root + name, kind, _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options)
        os.symlink("/proc/self/fd", f"{root}/dev/fd")
        os.chdir(root)
        if _libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b".") != 0:
            return False
        _libc.umount2(b".", _MNT_DETACH)
        os.chdir("/")
        _mount("none", "/", "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    except (OSError, KeyError):
        return False
    return True


def _show(root: str, path: str, *, writing: bool) -> None:
    """The same thing at the same place; what is not there is left out."""
    target = root + path
    if not os.path.lexists(path) or (os.path.lexists(target) and not os.path.isdir(path)):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    _mount(path, target, "", _MS_BIND | _MS_REC)
    if not writing:
        kept = os.statvfs(target).f_flag & _LOCKED_FLAGS
        _mount("none", target, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    done = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    if done != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {target}")


def landlock_version() -> int:
    """0 where the kernel has none."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return 0
    try:
        return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, 1)))
    except AttributeError:
        return 0


def restrict_files(readable: Iterable[str], writable: Iterable[str], *, network: bool) -> bool:
    """From here on only these can be read or run, and only these written to."""
    version = landlock_version()
    if not version:
        return False
    every = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
    net = 0b11 if version >= 4 and not network else 0
    scoped = 0b11 if version >= 6 else 0
    attributes = struct.pack("=QQQ", every, net, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _libc.syscall(_CREATE_RULESET, ctypes.c_char_p(attributes), size, 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow(ruleset, path, _READ)
        for path in writable:
            _allow(ruleset, path, every)
        forget_privileges()
        return bool(_libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """What is not there is not allowed either."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{opened}") and not os.path.isdir(path):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, opened)
        _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(opened)


def forget_privileges() -> bool:
    """No program that is run from here on gives more rights than there are."""
    return prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    for number in range(_MOST_CAPABILITIES):
        prctl(_PR_CAPBSET_DROP, number)


def set_limits(limits: Sequence[tuple[str, int]]) -> None:
    """By name, soft and hard; what is lower already stays."""
    for name, value in limits:
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue
        _, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        try:
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError):
            continue
