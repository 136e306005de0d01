"""System calls that a sandboxed command may not make: those for memory that no process holds.

A System V segment that nobody has mapped, and a message queue, belong to no process that could be
asked how much it uses, so they are refused by a seccomp filter. Segments of one page stay allowed
where the command has a namespace of its own for them: PostgreSQL marks its data folder with one.

Standard library only: it is loaded by file name in a process of its own.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from typing import NamedTuple

_LARGEST = 4096
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 28  # with ENOSPC, as where the system's own limit is met
_LOAD, _AND, _IF_EQUAL, _IF_GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
_NUMBER, _ARCHITECTURE, _SIZE, _SIZE_ABOVE = 0, 4, 24, 28
_WITHOUT_X32 = 0xBFFFFFFF
_PR_SET_SECCOMP, _FILTER = 22, 2


class _Abi(NamedTuple):
    """One of the ways in which a program can call this kernel, with the numbers of its calls."""

    architecture: int
    shmget: int
    refused: tuple[int, ...]
    """msgget; and, where it has it, the call that is all of System V's in one."""


_ABIS = {
    "x86_64": (_Abi(0xC000003E, 29, (68,)), _Abi(0x40000003, 395, (399, 117))),
    "aarch64": (_Abi(0xC00000B7, 194, (186,)), _Abi(0x40000028, 307, (303,))),
}


def program(*, own_segments: bool) -> bytes:
    """The filter, as the kernel reads it; it refuses nothing where the numbers are not known."""
    abis = _ABIS.get(platform.machine(), ())
    return b"".join(_block(abi, own_segments) for abi in abis) + _step(_RETURN, _ALLOW)


def _block(abi: _Abi, own_segments: bool) -> bytes:
    refused = abi.refused if own_segments else (*abi.refused, abi.shmget)
    body = _step(_LOAD, _NUMBER) + _step(_AND, _WITHOUT_X32)
    for number in refused:
        body += _step(_IF_EQUAL, number, otherwise=1) + _step(_RETURN, _REFUSE)
    if own_segments:
        body += _step(_IF_EQUAL, abi.shmget, otherwise=5)
        body += _step(_LOAD, _SIZE_ABOVE) + _step(_IF_GREATER, 0, then=2)
        body += _step(_LOAD, _SIZE) + _step(_IF_GREATER, _LARGEST, otherwise=1)
        body += _step(_RETURN, _REFUSE)
    body += _step(_RETURN, _ALLOW)
    steps = len(body) // 8
    return _step(_LOAD, _ARCHITECTURE) + _step(_IF_EQUAL, abi.architecture, otherwise=steps) + body


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """An instruction; `then` and `otherwise` are how many of the next ones are left out."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def refuse(*, own_segments: bool) -> bool:
    """From here on, for this process and all that come of it; privileges are given up before."""
    text = program(own_segments=own_segments)
    kept = ctypes.create_string_buffer(text, len(text))
    filtering = struct.pack("@HP", len(text) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(filtering), 0, 0) == 0)
    except AttributeError:
        return False
