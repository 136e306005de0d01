"""System calls that a sandboxed command may not make, as a seccomp filter.

Three kinds are refused:

- memory that no process holds. A System V segment that is not mapped, and a message queue, belong
  to no process whose use could be counted. Segments of one page stay allowed where the command has
  a namespace of its own for them: PostgreSQL marks its data folder with one.
- user namespaces inside the sandbox. They give every capability over what is in them, and so reach
  parts of the kernel that an ordinary user does not. The flags of clone3 are behind a pointer,
  which a filter cannot follow: it is refused as unknown, and the C library takes clone instead.
- keyrings and io_uring. Keyrings belong to the user and not to a namespace; io_uring carries out
  calls that no filter sees.

Standard library only: it is loaded by file name in a process of its own.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import NamedTuple

_LARGEST = 4096
_NEW_USER = 0x10000000
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _AND, _IF_EQUAL, _IF_GREATER, _IF_SET, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SIZE, _SIZE_ABOVE = 0, 4, 16, 24, 28
_WITHOUT_X32 = 0xBFFFFFFF
_PR_SET_SECCOMP, _FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38
_CLONE3 = 435
_IO_URING = (425, 426, 427)


class _Abi(NamedTuple):
    """One of the ways in which a program can call this kernel, with the numbers of its calls."""

    architecture: int
    shmget: int
    queues: tuple[int, ...]
    """msgget; and, where it has it, the call that is all of System V's in one."""
    flagged: tuple[int, int]
    """clone and unshare, whose first argument says which namespaces are wanted."""
    keys: tuple[int, int, int]
    """add_key, request_key, keyctl."""


_ABIS = {
    "x86_64": (
        _Abi(0xC000003E, 29, (68,), (56, 272), (248, 249, 250)),
        _Abi(0x40000003, 395, (399, 117), (120, 310), (286, 287, 288)),
    ),
    "aarch64": (
        _Abi(0xC00000B7, 194, (186,), (220, 97), (217, 218, 219)),
        _Abi(0x40000028, 307, (303,), (120, 337), (309, 310, 311)),
    ),
}


def known() -> bool:
    """Whether the numbers of this machine's calls are known; otherwise nothing is refused."""
    return platform.machine() in _ABIS


def program(*, own_segments: bool) -> bytes:
    """The filter, as the kernel reads it; it refuses nothing where the numbers are not known."""
    abis = _ABIS.get(platform.machine(), ())
    return b"".join(_block(abi, own_segments) for abi in abis) + _step(_RETURN, _ALLOW)


def _block(abi: _Abi, own_segments: bool) -> bytes:
    """With "no space left" where memory is wanted, as at the system's own limit."""
    unheld = abi.queues if own_segments else (*abi.queues, abi.shmget)
    refused = {
        **dict.fromkeys(unheld, errno.ENOSPC),
        **dict.fromkeys((*abi.keys, *_IO_URING), errno.EPERM),
        _CLONE3: errno.ENOSYS,
    }
    body = _step(_LOAD, _NUMBER) + _step(_AND, _WITHOUT_X32)
    for number, reason in refused.items():
        body += _step(_IF_EQUAL, number, otherwise=1) + _step(_RETURN, _REFUSE | reason)
    for number in abi.flagged:
        body += _step(_IF_EQUAL, number, otherwise=4)
        body += _step(_LOAD, _FIRST) + _step(_IF_SET, _NEW_USER, otherwise=1)
        body += _step(_RETURN, _REFUSE | errno.EPERM) + _step(_RETURN, _ALLOW)
    if own_segments:
        body += _step(_IF_EQUAL, abi.shmget, otherwise=5)
        body += _step(_LOAD, _SIZE_ABOVE) + _step(_IF_GREATER, 0, then=2)
        body += _step(_LOAD, _SIZE) + _step(_IF_GREATER, _LARGEST, otherwise=1)
        body += _step(_RETURN, _REFUSE | errno.ENOSPC)
    body += _step(_RETURN, _ALLOW)
    steps = len(body) // 8
    return _step(_LOAD, _ARCHITECTURE) + _step(_IF_EQUAL, abi.architecture, otherwise=steps) + body


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """An instruction; `then` and `otherwise` are how many of the next ones are left out."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def refuse(*, own_segments: bool) -> bool:
    """From here on, for this process and all that come of it, which gain no privileges any more."""
    text = program(own_segments=own_segments)
    kept = ctypes.create_string_buffer(text, len(text))
    filtering = struct.pack("@HP", len(text) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(filtering), 0, 0) == 0)
    except AttributeError:
        return False
