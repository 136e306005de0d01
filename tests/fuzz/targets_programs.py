"""What programs beside the service say: the sandbox's supervisor, git, and Celery's messages."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from celery.exceptions import InvalidTaskError
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message

from tests.clocks import ManualClock
from tests.fuzz.target import (
    TOKEN,
    Target,
    check_message,
    joined,
    parts_of,
    refusing,
    sound_text_of,
)
from towline.forges.base import GitAccess
from towline.git.clone_cache import push_failure
from towline.git.command import GitEnd, failure, scrubbed, secrets_of
from towline.git.worktree import TreeLimits, links_of, links_that_stay
from towline.jobs.celery import TASK
from towline.jobs.celery_worker import CeleryWorker
from towline.jobs.model import Claimed
from towline.sandbox.base import Limits, Ran
from towline.sandbox.confined import _heard, _ran
from towline_once.errors import Rejected

_ROOT: Final = b"/tree"
_LONGEST_LINK: Final = 4096
_LONGEST_JOB_ID: Final = 255


def sandbox_reports(data: bytes) -> None:
    """Of whatever is reported of a command comes a status that was said, or what went wrong."""
    report, output = parts_of(data, 2)
    ran = asyncio.run(_reported(report, sound_text_of(output)))
    assert ran.status is None or type(ran.status) is int
    assert not (ran.trouble and ran.status is not None)
    if ran.trouble is not None:
        check_message(ran.trouble)
    if ran.succeeded:
        assert b"0" in report


async def _reported(report: bytes, output: str) -> Ran:
    hear, tell = os.pipe()
    os.write(tell, report)
    os.close(tell)
    return _ran(await _heard(os.fdopen(hear, "rb")), output, Limits())


def git_trees(data: bytes) -> None:
    """Names that git lists are safe or refused, and no link that is made leads out of the tree."""
    pieces = [piece.replace(b"\0", b"") for piece in data.split(b"\x1e")]
    links = dict(zip(pieces[::2], (one[:_LONGEST_LINK] for one in pieces[1::2]), strict=False))
    links = {name: links[name] for name in links if not _is_below(name, links)}
    listing = b"".join(b"120000 blob %b       9\t%b\0" % (b"a" * 40, name) for name in links)
    with refusing(Rejected):
        names = links_of(listing, TreeLimits())
        assert names == list(links)
        for name in names:
            assert _lands(name) == _ROOT + b"/" + name
        for name, target in links_that_stay(links).items():
            place = _lands(posixpath.join(posixpath.dirname(name), target))
            assert place.startswith(_ROOT + b"/")
            assert place.removeprefix(_ROOT + b"/") not in links
            assert b".git" not in place.lower().split(b"/")


def _is_below(name: bytes, others: Mapping[bytes, bytes]) -> bool:
    """What cannot be: git has each name once, as a link or as a folder."""
    parts = name.split(b"/")[:50]
    return any(b"/".join(parts[:end]) in others for end in range(1, len(parts)))


def _lands(path: bytes) -> bytes:
    return posixpath.normpath(posixpath.join(_ROOT, path))


def git_words(data: bytes) -> None:
    """What git and the far side say of a failure becomes one line without the password."""
    said, out = parts_of(data, 2)
    secrets = secrets_of(GitAccess("https://h/o/n.git", "x-access-token", TOKEN))
    told = scrubbed(said.decode(errors="replace"), secrets)
    for status in (1, 128, -25):
        check_message(str(failure("fetch", GitEnd(status, b"", told))))
    pushed = GitEnd(1, scrubbed(out.decode(errors="replace"), secrets).encode(), told)
    check_message(str(push_failure("towline/fix-1", pushed)))


class _Asked(NamedTuple):
    """A store that notes which jobs are claimed, and has none."""

    ids: list[str]

    async def claim_one(self, job_id: str, *_: Any) -> Claimed | None:
        self.ids.append(job_id)
        return None


def celery_messages(data: bytes) -> None:
    """A message names a job that can be looked for, or is thrown away as Celery does it."""
    asyncio.run(_received(*parts_of(data, 4)))


async def _received(body: bytes, kind: bytes, encoding: bytes, compression: bytes) -> None:
    asked: Any = _Asked([])
    crew: Any = SimpleNamespace(rules=SimpleNamespace(owner="o", lease_us=1, repo_limit=1))
    nobody: Any = None
    worker = CeleryWorker("redis://h", asked, crew, nobody, ManualClock(), 1)
    headers = {"task": TASK, "compression": compression.decode("latin-1")}
    of_any_kind: Any = Message
    message = of_any_kind(
        body, content_type=kind.decode("latin-1"), content_encoding=encoding.decode("latin-1"),
        headers=headers, accept={"application/json"},
    )  # fmt: skip
    with suppress(ContentDisallowed, DecodeError), refusing(InvalidTaskError):
        worker._strategy()(message)
    for _ in range(5):
        await asyncio.sleep(0)
    assert worker._hands.acquire(blocking=False), "a hand is busy for ever"
    for job_id in asked.ids:
        assert type(job_id) is str
        assert job_id.isprintable()
        assert 0 < len(job_id.encode()) <= _LONGEST_JOB_ID


def _report_seeds() -> Iterator[bytes]:
    yield joined(b'{"status": 0, "why": null, "clean": true}', b"ok\n")
    yield joined(b'{"status": null, "why": "memory", "clean": true, "held": ["a"]}', b"out")
    yield joined(b'{"status": 1, "why": null, "trouble": "it could not be set up"}', b"bwrap: a\nb")
    yield joined(b'{"status": 0}{"status": 0}', b"")
    yield joined(b"", b"Traceback (most recent call last):\n  x")


def _tree_seeds() -> Iterator[bytes]:
    yield joined(b"a/b", b"../c", b"c", b"d/e", b"bin/tool", b"./../lib/tool.py")
    yield joined(b"l", b"/etc/passwd", b"m", b"../../x", b"n/o", b"../.GIT/config", b"p", b"l/x")
    yield joined(b"a/../b", b"x", b".git/hooks/x", b"y", b"", b"z")


def _git_seeds() -> Iterator[bytes]:
    yield joined(b"fatal: couldn't find remote ref refs/heads/x\n", b"")
    yield joined(b"remote: HTTP Basic: Access denied\nfatal: Authentication failed for 'h'\n", b"")
    yield joined(b"error: failed to push some refs", b"!\ta:b\t[rejected] (stale info)\nDone\n")
    yield joined(b"remote: " + TOKEN.encode(), b"!\ta:b\t[remote rejected] (hook declined)\n")


def _celery_seeds() -> Iterator[bytes]:
    sound = b'[["job_0190a"], {}, {"callbacks": null, "errbacks": null}]'
    yield joined(sound, b"application/json", b"utf-8")
    yield joined(b'[[{"id": 1}], {}]', b"application/json", b"utf-8")
    yield joined(b'[["a", "b"]]', b"application/json", b"us-ascii")
    yield joined(b'{"task": "x"}', b"application/x-python-serialize", b"binary")
    yield joined(b'[["\\ud800\\u0000"], {}]', b"application/json", b"utf-8", b"application/x-gzip")
    yield joined(b'[[{"__type__": "uuid", "__value__": {"hex": "a"}}]]', b"application/json", b"")


_GIT_WORDS: Final = (
    *(b"error: 403 ", b"permission ", b"repository ", b"error in ", b"Remote branch ", b"redirect"),
    *(b"fatal: ", b"\n", b"\r", b"stale info", b"failed to update ref", b"\x1b[31m", b"\x1e"),
)
TARGETS: Final = (
    Target("sandbox.report", sandbox_reports, _report_seeds, (
        b'{"status":', b'"why":"time"', b'"trouble":', b"null", b"true", b"[[[[", b"\x1e", b"1e5")),
    Target("git.trees", git_trees, _tree_seeds, (
        b"/", b"..", b"../", b"./", b".git", b".GIT", b"\x1e", b"//", b"\n", b"a/")),
    Target("git.words", git_words, _git_seeds, _GIT_WORDS),
    Target("celery.messages", celery_messages, _celery_seeds, (
        b"\x1e", b'[["job_', b'"]]', b"application/json", b"utf-16", b"idna", b"application/data",
        b'{"__type__":"datetime","__value__":"', b"application/x-bz2", b"\\u0000", b"\\ud800")),
)  # fmt: skip
