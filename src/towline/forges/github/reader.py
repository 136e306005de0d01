"""Looking at many pull requests: dozens in one GraphQL call, by REST where that does not do.

Calls are made one after another, as GitHub asks. A batch that GitHub cannot answer in time is
halved. A list that goes on beyond the answer is read by REST. Where GraphQL is not offered, all
is read by REST for an hour.

Whether a pull request conflicts is worked out by GitHub in the background, and being asked is
what makes it start. What is not known yet is None, and the caller may look again. With
`mergeable_waits` a look does that itself: those not yet worked out are asked about again after
each of these delays, in one small call for 200 of them, and what is still not known stays None.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from towline.events import CheckChanged
from towline.forges import payload
from towline.forges.base import Allowance, Permission
from towline.forges.client import Answer
from towline.forges.delivery_log import ForgeUnavailable, ForgeUnreadable
from towline.forges.github.auth import Access
from towline.forges.github.graphql import Question, Told, mergeability, question, told
from towline.forges.github.logs import FailureLogs
from towline.forges.github.rate_limit import Sleep
from towline.forges.github.rest_reader import RestLook
from towline.forges.github.snapshot import Seen, last_red_of_actions, needs_workflows, snapshot_of
from towline.forges.payload import Object
from towline.forges.snapshot import PullRef, Snapshot
from towline_once.errors import Rejected
from towline_once.ports import Clock

NAME: Final = "github"
BATCH: Final = 50
_CHEAP_BATCH: Final = 200
_FEW_ATTEMPTS: Final = 10
_REFS_AN_ATTEMPT: Final = 100
_SMALLEST_BATCH: Final = 5
_WITHOUT_GRAPHQL_SECONDS: Final = 3600.0
_ABSENT: Final = (404, 501)
_TOO_SLOW: Final = (502, 504)
_LOGIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}(?:\[bot\])?")
_ROLES: Final[Mapping[str | None, Permission]] = {
    "admin": "admin",
    "maintain": "maintain",
    "write": "write",
    "triage": "triage",
    "read": "read",
}


class NoGraphQL(Exception):
    """GraphQL is not offered here, or not what is asked."""


class TooMuchAtOnce(ForgeUnavailable):
    """GitHub could not answer so large a question in time."""


class GitHubReader:
    def __init__(
        self,
        access: Access,
        clock: Clock,
        sleep: Sleep,
        *,
        graphql: bool = True,
        batch: int = BATCH,
        mergeable_waits: Sequence[float] = (),
        follow_logs: bool = True,
    ) -> None:
        self.rest = RestLook(access)
        self._logs = FailureLogs(access, clock, self.rest, follow=follow_logs)
        self._access = access
        self._clock = clock
        self._sleep = sleep
        self._batch = batch
        self._waits = tuple(mergeable_waits)
        self._by_rest_until = -1.0 if graphql else float("inf")

    async def look(self, refs: Sequence[PullRef]) -> Mapping[PullRef, Snapshot]:
        began = self._clock.monotonic()
        wanted = list(dict.fromkeys(refs))
        if strangers := [ref for ref in wanted if ref.forge != NAME]:
            raise Rejected(f"{strangers[0]} is of {strangers[0].forge}, not of GitHub")
        seen: dict[PullRef, Seen] = {}
        for batch in self._batches(wanted, self._batch):
            seen |= await self._seen(batch)
        await self._read_attempts(seen)
        await self._await_mergeability(seen)
        asked_at = self._access.rest.now_us() / 1e6 - (self._clock.monotonic() - began)
        return {
            ref: replace(snapshot_of(seen[ref]), asked_at=asked_at) for ref in wanted if ref in seen
        }

    async def ask_ahead(self, refs: Sequence[PullRef]) -> int:
        """A call for 200 where a look takes one for 50; by REST it would cost as much as looks."""
        unknown = 0
        for batch in self._batches(list(dict.fromkeys(refs)), _CHEAP_BATCH):
            if not self._has_graphql:
                break
            nodes = await self._mergeability_nodes(batch)
            if nodes is None:
                self._do_without_graphql()
                break
            for node in nodes.values():
                unknown += node.get("state") == "OPEN" and mergeability(node)["mergeable"] is None
        return unknown

    async def open_pulls(self, repo: str) -> list[Snapshot]:
        return await self.rest.open_pulls(repo)

    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        return await self._logs.failure_log(repo, check, most_bytes)

    async def permission(self, repo: str, login: str) -> Permission:
        """The exact role; of a role that an organisation made up, what it is built on."""
        if not _LOGIN.fullmatch(login):
            raise Rejected("a login of GitHub is of letters, digits and hyphens")
        path = f"/collaborators/{quote(login, safe='')}/permission"
        answer = await self._access.get(repo, path, f"permission of {login}", also=(404,))
        if answer.status == 404:
            return "none"
        told = answer.json()
        node = told if isinstance(told, dict) else {}
        names = payload.text(node, "role_name"), payload.text(node, "permission")
        return next((_ROLES[name] for name in names if name in _ROLES), "none")

    async def allowance(self) -> Allowance | None:
        return self._access.rest.limits.allowance

    def _batches(self, refs: Sequence[PullRef], size: int) -> Iterator[list[PullRef]]:
        """One call has one installation's credentials, so its repositories are of one account."""
        accounts: dict[str, list[PullRef]] = {}
        for ref in refs:
            accounts.setdefault(self._access.account_of(ref.repo), []).append(ref)
        for group in accounts.values():
            for start in range(0, len(group), size):
                yield group[start : start + size]

    @property
    def _has_graphql(self) -> bool:
        return self._clock.monotonic() >= self._by_rest_until

    def _do_without_graphql(self) -> None:
        self._by_rest_until = self._clock.monotonic() + _WITHOUT_GRAPHQL_SECONDS

    async def _seen(self, refs: list[PullRef]) -> dict[PullRef, Seen]:
        if self._has_graphql:
            try:
                return await self._seen_by_graphql(refs)
            except NoGraphQL:
                self._do_without_graphql()
            except TooMuchAtOnce:
                if len(refs) <= _SMALLEST_BATCH:
                    raise
                middle = len(refs) // 2
                return await self._seen(refs[:middle]) | await self._seen(refs[middle:])
        return await self._seen_by_rest(refs)

    async def _seen_by_rest(self, refs: Sequence[PullRef]) -> dict[PullRef, Seen]:
        found = {ref: await self.rest.seen(ref) for ref in refs}
        return {ref: seen for ref, seen in found.items() if seen is not None}

    async def _seen_by_graphql(self, refs: list[PullRef]) -> dict[PullRef, Seen]:
        asked = question(refs)
        answered = await self._ask(asked, refs[0].repo, f"{len(refs)} pull requests")
        seen = {
            ref: await self._completed(ref, told(ref.repo, node))
            for ref, node in answered.found.items()
        }
        return seen | await self._seen_by_rest(answered.unclear)

    async def _completed(self, ref: PullRef, part: Told) -> Seen:
        """With what did not fit into the answer, or is not in it."""
        seen, rest, sha = part.seen, self.rest, part.seen.head_sha
        if not seen.is_open or sha is None:
            return seen
        if part.more_checks:
            seen.runs = await rest.runs(ref.repo, sha)
            seen.statuses = await rest.statuses(ref.repo, sha)
        if part.more_suites:
            seen.suites = await rest.suites(ref.repo, sha)
        if part.more_reviews:
            seen.reviews = await rest.reviews(ref)
        return seen

    async def _read_attempts(self, seen: Mapping[PullRef, Seen]) -> None:
        """For red verdicts of Actions: GraphQL does not tell which attempt they are of.

        Where something looks odd, always; else for the newest of them, so that a large sweep
        stays within its calls.
        """
        odd = [ref for ref, one in seen.items() if one.is_open and needs_workflows(one)]
        red = {ref: last_red_of_actions(one) for ref, one in seen.items() if one.is_open}
        newest = sorted(red, key=lambda ref: red[ref] or 0.0, reverse=True)
        rest = [ref for ref in newest if red[ref] is not None and ref not in odd]
        most = max(_FEW_ATTEMPTS, len(seen) // _REFS_AN_ATTEMPT) - len(odd)
        for ref in (*odd, *rest[: max(most, 0)]):
            sha = seen[ref].head_sha
            if sha is not None and not seen[ref].attempts_known:
                seen[ref].workflows = await self.rest.workflows(ref.repo, sha)

    async def _await_mergeability(self, seen: Mapping[PullRef, Seen]) -> None:
        for wait in self._waits:
            unknown = [ref for ref, one in seen.items() if _is_unknown(one)]
            if not unknown:
                return
            await self._sleep(wait)
            # What is known already is worth more than what this would add to it.
            with contextlib.suppress(ForgeUnavailable):
                for batch in self._batches(unknown, _CHEAP_BATCH):
                    for ref, part in (await self._mergeability(batch)).items():
                        seen[ref].pull.update(part)

    async def _mergeability(self, refs: Sequence[PullRef]) -> dict[PullRef, Object]:
        nodes = await self._mergeability_nodes(refs)
        if nodes is not None:
            return {ref: mergeability(node) for ref, node in nodes.items()}
        pulls = {ref: await self.rest.pull(ref) for ref in refs}
        names = ("mergeable", "mergeable_state")
        return {
            ref: {name: pull.get(name) for name in names}
            for ref, pull in pulls.items()
            if pull is not None
        }

    async def _mergeability_nodes(self, refs: Sequence[PullRef]) -> dict[PullRef, Object] | None:
        """None where GraphQL is not offered."""
        if self._has_graphql:
            asked = question(refs, only_mergeability=True)
            about = f"mergeability of {len(refs)} pull requests"
            with contextlib.suppress(NoGraphQL):
                return (await self._ask(asked, refs[0].repo, about)).found
        return None

    async def _ask(self, asked: Question, repo: str, about: str) -> Answered:
        answer = await self._access.ask(repo, asked.body(), about, (*_ABSENT, *_TOO_SLOW))
        if answer.status in _ABSENT:
            raise NoGraphQL
        if answer.status in _TOO_SLOW:
            raise TooMuchAtOnce(f"GitHub failed to answer about {about} ({answer.status})")
        body = answer.json()
        if not isinstance(body, dict):
            raise ForgeUnreadable("GitHub's answer in GraphQL is not an object")
        errors = [Complaint(error) for error in payload.objects(body, "errors", 1000)]
        if limit := next((error for error in errors if error.is_limit), None):
            raise self._access.rest.limited(answer, limit.message)
        data = body.get("data")
        if not isinstance(data, dict):
            raise _why_nothing(answer, errors, about)
        self._access.rest.spend(payload.number(payload.inner(data, "rateLimit"), "cost") or 1)
        return Answered(asked, data, errors)


class Complaint:
    """One of an answer's errors."""

    def __init__(self, error: Object) -> None:
        self.kind = payload.text(error, "type")
        self.message = payload.prose(error, "message", 200)
        self.is_about_the_query = "locations" in error
        path: Any = error.get("path")
        self.path = tuple(map(str, path)) if isinstance(path, list) else ()

    @property
    def is_limit(self) -> bool:
        return self.kind == "RATE_LIMITED" or "rate limit" in self.message.lower()


class Answered:
    """`found`; and what an error or a hole leaves unclear. All else that was asked for is gone."""

    def __init__(self, asked: Question, data: Object, errors: Sequence[Complaint]) -> None:
        self.found: dict[PullRef, Object] = {}
        self.unclear: list[PullRef] = []
        for ref, place in asked.places.items():
            node = payload.inner(payload.inner(data, place[0]), place[1])
            about = [error for error in errors if _meet(error.path, place)]
            if node and not about:
                self.found[ref] = node
            elif not _is_null(data, place) or not all(map(_says_gone, about or errors)):
                self.unclear.append(ref)


def _is_null(data: Object, place: tuple[str, str]) -> bool:
    """Whether the answer says that there is none; not saying anything is another matter."""
    repo = data.get(place[0], ...)
    return repo is None or (isinstance(repo, dict) and repo.get(place[1], ...) is None)


def _says_gone(error: Complaint) -> bool:
    return error.kind == "NOT_FOUND" and len(error.path) <= 2


def _meet(path: Sequence[str], place: tuple[str, str]) -> bool:
    """Whether an error's path leads to, through or into a place."""
    return bool(path) and all(one == other for one, other in zip(path, place, strict=False))


def _why_nothing(answer: Answer, errors: Sequence[Complaint], about: str) -> Exception:
    said = "; ".join(error.message for error in errors) or "no data"
    if "timeout" in said.lower() or "timed out" in said.lower():
        return TooMuchAtOnce(f"GitHub failed to answer about {about} ({answer.status}: {said})")
    if any(error.kind == "NOT_FOUND" or error.is_about_the_query for error in errors):
        return NoGraphQL()
    return ForgeUnavailable(f"GitHub failed to answer about {about} ({answer.status}: {said})")


def _is_unknown(seen: Seen) -> bool:
    return seen.is_open and payload.flag(seen.pull, "mergeable") is None
