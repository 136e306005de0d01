"""A forge's own log of the webhooks it sent, and what came of them hour by hour."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import orjson

from towline_once import keys
from towline_once.errors import Rejected, Unavailable

# ------------------------------------------------------------------ which deliveries are lost
# Which deliveries of a hook never arrived, and how far its log must be read to know.
#
# GitHub sends each delivery once and keeps a log of it for three days. What the log has and the
# inbox has not was lost, and is taken in from the log. A `Mark` per hook says how far that is
# done:
#
# * The watermark never passes a delivery that is not stored. The log is read from the start of
# the
#   hour some time before it, so that entries which show up late are seen, and every hour that is
#   counted is counted whole.
# * A delivery that was answered with success before the log was first read, and that the inbox
# does
#   not know, was taken by another receiver: it is not ours. Later ones are: a proxy in between
# lied.
# * One that was answered a moment ago may be on its way into the inbox, and is left for next
# time.
# * What is being taken in is noted first, and added to the hour's tally when it is stored:
# whoever
#   comes after a crash knows which deliveries were recovered, and counts each of them once.

HOUR_US: Final = 3_600_000_000

_REPO_HOOK: Final = re.compile(
    r"(?P<repo>[\w-][\w.-]*/(?!\.\.?:)[\w.-]+):(?P<id>[1-9]\d{0,18})", re.ASCII
)
_APP_ID: Final = re.compile(r"[1-9]\d{0,18}", re.ASCII)


class Hook(NamedTuple):
    """A hook of a repository, or of an App, whose `repo` is None."""

    name: str
    """As it is configured and shown: `owner/name:17`, or `app-42`."""
    repo: str | None
    id: str
    """Of the hook, or of the App."""

    def key(self, guid: str) -> str:
        """The key under which the inbox knows a delivery, if it does."""
        return str(keys.GitHub(guid, hook_id=self.id if self.repo else self.name))

    def headers(self, guid: str, event: str) -> dict[str, str]:
        """What the source needs of the headers that the delivery came with."""
        told = {"content-type": "application/json"}
        told |= {"x-github-delivery": guid, "x-github-event": event}
        if self.repo:
            return told | {"x-github-hook-id": self.id}
        return told | {
            "x-github-hook-installation-target-type": "integration",
            "x-github-hook-installation-target-id": self.id,
        }


def repo_hook(text: str) -> Hook:
    """Read `OWNER/NAME:HOOK_ID`."""
    match = _REPO_HOOK.fullmatch(text)
    if match is None:
        raise Rejected(f"a hook is written OWNER/NAME:HOOK_ID, not {text[:100]!r}")
    return Hook(text, match["repo"], match["id"])


def app_hook(app_id: str) -> Hook:
    """By the number that the App's webhooks carry; its client id is not among their headers."""
    if not _APP_ID.fullmatch(app_id):
        raise Rejected(f"an App's id is a number, not {app_id[:100]!r}")
    return Hook(f"app-{app_id}", None, app_id)


class Entry(NamedTuple):
    """One attempt to deliver, as the log has it."""

    id: int
    guid: str
    delivered_us: int
    redelivery: bool
    status_code: int
    event: str


class Sent(NamedTuple):
    """All attempts at one delivery that were seen."""

    guid: str
    event: str
    entry_id: int
    """The newest attempt's, which the log will keep longest."""
    first_us: int
    last_us: int
    whole: bool
    """The first attempt of all is among those seen."""
    answered_us: int
    """When an attempt was last answered with success; zero if none was."""

    @property
    def hour_us(self) -> int:
        return hour_of(self.first_us)


class Limits(NamedTuple):
    overlap_us: int = HOUR_US // 4
    grace_us: int = 30_000_000
    horizon_us: int = 72 * HOUR_US


class Mark(NamedTuple):
    """How far a hook's log has been dealt with."""

    began_us: int
    watermark_us: int
    underway: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Deliveries that cannot be taken in, so that they are not tried again."""
    recovered: Mapping[int, int] = {}
    """How many, by the hour in which they were first sent."""


class HourCounts(NamedTuple):
    hour_us: int
    delivered: int
    received: int
    recovered: int


def hour_of(moment_us: int) -> int:
    return moment_us - moment_us % HOUR_US


def first_mark(now_us: int, limits: Limits) -> Mark:
    return Mark(began_us=now_us, watermark_us=now_us - limits.horizon_us)


def read_since(mark: Mark, now_us: int, limits: Limits) -> int:
    """Where the log need not be read any further; `now_us` is the forge's time."""
    oldest = now_us - limits.horizon_us
    return max(oldest, hour_of(mark.watermark_us - limits.overlap_us))


def grouped(entries: Iterable[Entry]) -> list[Sent]:
    """The deliveries behind the attempts, oldest first."""
    attempts: dict[str, list[Entry]] = {}
    for entry in entries:
        attempts.setdefault(entry.guid, []).append(entry)
    return sorted(map(_sent, attempts.values()), key=lambda sent: (sent.first_us, sent.entry_id))


def _sent(attempts: Sequence[Entry]) -> Sent:
    newest = max(attempts)
    times = [entry.delivered_us for entry in attempts]
    return Sent(
        guid=newest.guid,
        event=newest.event,
        entry_id=newest.id,
        first_us=min(times),
        last_us=max(times),
        whole=not all(entry.redelivery for entry in attempts),
        answered_us=max(
            (entry.delivered_us for entry in attempts if 200 <= entry.status_code < 300), default=0
        ),
    )


def missing(
    sent: Sequence[Sent], known: Collection[str], mark: Mark, now_us: int, limits: Limits
) -> list[Sent]:
    """What must be taken in, oldest first; `known` are the GUIDs that the inbox has."""
    passed_over = {*known, *mark.refused}
    return [
        one
        for one in sent
        if one.guid not in passed_over
        and not _taken_elsewhere(one, mark)
        and one.answered_us <= now_us - limits.grace_us
    ]


def _taken_elsewhere(one: Sent, mark: Mark) -> bool:
    return one.answered_us > 0 and one.last_us < mark.began_us


def resumed(mark: Mark, sent: Sequence[Sent], known: Collection[str]) -> Mark:
    """Count what an interrupted sweep had stored."""
    stored = set(mark.underway) & set(known)
    return tallied(mark, [one for one in sent if one.guid in stored])


def tallied(mark: Mark, recovered: Sequence[Sent], refused: Sequence[Sent] = ()) -> Mark:
    """Nothing is under way any more: these were stored, and those cannot be."""
    tally = Counter(mark.recovered)
    tally.update(one.hour_us for one in recovered if one.whole)
    return mark._replace(
        underway=(),
        refused=(*mark.refused, *(one.guid for one in refused)),
        recovered=dict(tally),
    )


def advanced(
    mark: Mark, sent: Sequence[Sent], left: Sequence[Sent], now_us: int, limits: Limits
) -> Mark:
    """The watermark up to the newest delivery, but not past what is `left` to store."""
    if not sent:
        return mark
    reached = min(max(one.last_us for one in sent), now_us - limits.grace_us)
    reached = min([reached, *(one.first_us for one in left)])
    moved = mark._replace(watermark_us=max(mark.watermark_us, reached))
    since = read_since(moved, now_us, limits)
    again = [one for one in sent if one.last_us >= since]
    # The attempt that was answered elsewhere may be out of sight by then.
    passed_over = {*mark.refused, *(one.guid for one in again if _taken_elsewhere(one, mark))}
    return moved._replace(
        refused=tuple(one.guid for one in again if one.guid in passed_over),
        recovered={hour: count for hour, count in mark.recovered.items() if hour >= since},
    )


def hourly(
    sent: Sequence[Sent], stored: Collection[str], mark: Mark, since_us: int
) -> list[HourCounts]:
    """Each hour that was seen from its start; `stored` are the GUIDs the inbox has by now."""
    ours = [
        one
        for one in sent
        if one.whole
        and one.hour_us >= since_us
        and (one.guid in stored or not _taken_elsewhere(one, mark))
    ]
    delivered = Counter(one.hour_us for one in ours)
    arrived = Counter(one.hour_us for one in ours if one.guid in stored)
    counts = []
    for hour, number in sorted(delivered.items()):
        recovered = min(arrived[hour], mark.recovered.get(hour, 0))
        counts.append(HourCounts(hour, number, arrived[hour] - recovered, recovered))
    return counts


def mark_text(mark: Mark) -> str:
    return orjson.dumps(mark._asdict(), option=orjson.OPT_NON_STR_KEYS).decode()


def mark_from(text: str) -> Mark:
    fields = orjson.loads(text)
    return Mark(
        began_us=fields["began_us"],
        watermark_us=fields["watermark_us"],
        underway=tuple(fields["underway"]),
        refused=tuple(fields["refused"]),
        recovered={int(hour): count for hour, count in fields["recovered"].items()},
    )


# ------------------------------------------------------------------ hooks


class ForgeUnavailable(Unavailable):
    """The forge did not answer, failed, or asks to be left alone for `retry_after` seconds."""


class ForgeUnreadable(ForgeUnavailable):
    """The forge's answer is not what its API sends."""


class ForgeRefused(Rejected):
    """What was asked for is not there, or the credentials do not open it."""


class LogPage(NamedTuple):
    entries: Sequence[Entry]
    """Newest first."""
    next: str | None
    """The cursor of the page with older entries."""
    now_us: int
    """The forge's time."""


class Recorded(NamedTuple):
    """A delivery as it was sent; the headers' names are in lower case."""

    guid: str
    headers: Mapping[str, str]
    payload: Mapping[str, Any]


class HookLog(Protocol):
    """Each call ends by its deadline."""

    async def page(self, hook: Hook, cursor: str | None = None) -> LogPage: ...

    async def read(self, hook: Hook, entry_id: int) -> Recorded:
        """`ForgeRefused` if the log no longer has it."""
        ...


class HookHour(NamedTuple):
    """`delivered` by the forge, of which `received` as webhooks and `recovered` from its log."""

    hook: str
    hour_us: int
    delivered: int
    received: int
    recovered: int
