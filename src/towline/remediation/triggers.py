"""Triggers a bot or a CI in ten ways, each of them one call to the forge, a CI or an address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import quote

from towline.events import CheckChanged
from towline.forges.base import Done, Forge
from towline.forges.snapshot import PullRef, Snapshot
from towline.integrations.ci import Ci
from towline.jobs.ids import mark_of
from towline.pulls.facts import matches
from towline.pulls.signals import Poked, Signals, Trigger, TriggerKind
from towline.remediation.strategies import EMPTY_COMMIT_TEXT, filled
from towline_once.errors import Rejected

APPROVAL_TEXT = "The checks are green and the policy is met."


class HttpCaller(Protocol):
    async def post(self, url: str, payload: Mapping[str, object], key: str) -> Done:
        """`Unavailable` if whether it arrived is not known; `key` is the same for each try."""
        ...


class Poke(NamedTuple):
    """What came of it; `watch` is where a CI shows the build."""

    done: Done
    watch: str = ""


class Errand(NamedTuple):
    """One poke, with all that any kind of trigger may need."""

    ref: PullRef
    poked: Poked
    trigger: Trigger
    signals: Signals
    sight: Snapshot
    intent_id: str

    @property
    def head_sha(self) -> str:
        return self.sight.pull.head_sha or ""

    def fill(self, template: str, *, in_url: bool = False) -> str:
        branch = self.sight.pull.head_ref
        return filled(template, self.ref.repo, branch, self.ref.number, in_url=in_url)

    def job(self) -> str:
        """A multibranch job has each branch as one part of its path, slashes encoded."""
        branch = quote(self.sight.pull.head_ref or "", safe="")
        return filled(self.trigger.job, self.ref.repo, branch, self.ref.number)

    def about(self) -> dict[str, object]:
        """What a program is told that is poked."""
        return {
            "poke": self.poked,
            "repo": self.ref.repo,
            "number": self.ref.number,
            "branch": self.sight.pull.head_ref,
            "head_sha": self.head_sha,
            "id": self.intent_id,
        }


class Poker:
    """`ci` and `http` are None where none is configured: what needs them is unsupported then."""

    def __init__(
        self,
        forges: Mapping[str, Forge],
        ci: Ci | None = None,
        http: HttpCaller | None = None,
        own_logins: frozenset[str] = frozenset(),
    ) -> None:
        self._forges = forges
        self._ci = ci
        self._http = http
        self._own_logins = own_logins
        self._kinds: Mapping[TriggerKind, Callable[[Errand], Awaitable[Poke]]] = {
            "native": self._natively,
            "jenkins": self._by_jenkins,
            "rerun_failed": self._by_rerun,
            "rerequest_suite": self._by_rerequest,
            "empty_commit": self._by_empty_commit,
            "label": self._by_label,
            "comment": self._by_comment,
            "status": self._by_status,
            "dispatch": self._by_dispatch,
            "http": self._by_http,
        }

    async def poke(self, errand: Errand) -> Poke:
        """A refusal is an answer; only `Unavailable` is raised, and leaves open what happened."""
        try:
            return await self._kinds[errand.trigger.kind](errand)
        except Rejected as refused:
            return Poke(Done("blocked", str(refused)))

    async def built(self, watch: str) -> bool:
        """Whether the build that was asked for has begun."""
        if self._ci is None:
            return False
        return (await self._ci.read(watch)).state in ("running", "succeeded", "failed")

    def _forge(self, errand: Errand) -> Forge:
        return self._forges[errand.ref.forge]

    async def _natively(self, errand: Errand) -> Poke:
        """Our own work where a team has no bot; the caller judges the policy."""
        if errand.poked == "rebuild":
            return await self._by_rerun(errand)
        if errand.poked == "merge":
            return Poke(await self._forge(errand).merge(errand.ref, errand.head_sha))
        if errand.poked != "approver":
            return Poke(Done("unsupported", f"there is no trigger for {errand.poked}"))
        author = errand.sight.pull.author
        if author is not None and author.login in self._own_logins:
            return Poke(Done("blocked", f"{author.login} wrote it and may not approve it"))
        forge = self._forge(errand)
        return Poke(await forge.approve(errand.ref, errand.head_sha, APPROVAL_TEXT))

    async def _by_jenkins(self, errand: Errand) -> Poke:
        if self._ci is None:
            return Poke(Done("unsupported", "no Jenkins is configured"))
        parameters = {
            "REPO": errand.ref.repo,
            "BRANCH": errand.sight.pull.head_ref or "",
            "SHA": errand.head_sha,
            "PR_NUMBER": str(errand.ref.number),
            "TOWLINE_INTENT": errand.intent_id,
        }
        build = await self._ci.build(errand.job(), parameters)
        return Poke(Done("queued", build.url), build.url)

    async def _by_rerun(self, errand: Errand) -> Poke:
        checks = failed_checks(errand.sight, errand.signals)
        done = await self._forge(errand).rerun_failed(errand.ref.repo, checks)
        if done.status == "unsupported":
            return await self._by_rerequest(errand)
        return Poke(done)

    async def _by_rerequest(self, errand: Errand) -> Poke:
        checks = failed_checks(errand.sight, errand.signals)
        return Poke(await self._forge(errand).rerequest(errand.ref.repo, checks))

    async def _by_empty_commit(self, errand: Errand) -> Poke:
        forge = self._forge(errand)
        return Poke(await forge.empty_commit(errand.ref, errand.head_sha, EMPTY_COMMIT_TEXT))

    async def _by_label(self, errand: Errand) -> Poke:
        return Poke(await self._forge(errand).toggle_label(errand.ref, errand.trigger.label))

    async def _by_comment(self, errand: Errand) -> Poke:
        text, marker = errand.fill(errand.trigger.text), f"poke:{mark_of(errand.intent_id)}"
        return Poke(await self._forge(errand).comment(errand.ref, text, marker))

    async def _by_status(self, errand: Errand) -> Poke:
        forge, context = self._forge(errand), errand.trigger.context
        return Poke(await forge.reemit_status(errand.ref.repo, errand.head_sha, context))

    async def _by_dispatch(self, errand: Errand) -> Poke:
        event_type = errand.trigger.event_type
        forge = self._forge(errand)
        return Poke(await forge.dispatch(errand.ref.repo, event_type, errand.about()))

    async def _by_http(self, errand: Errand) -> Poke:
        if self._http is None:
            return Poke(Done("unsupported", "no http trigger is configured"))
        url = errand.fill(errand.trigger.url, in_url=True)
        return Poke(await self._http.post(url, errand.about(), errand.intent_id))


def failed_checks(sight: Snapshot, signals: Signals) -> list[CheckChanged]:
    """CI's failed checks that count; all of CI's if none failed, as none may have begun."""
    ours = [
        check
        for check in sight.checks
        if not matches(check.name, signals.policy_checks)
        and not matches(check.name, signals.ignored)
        and (not signals.required or matches(check.name, signals.required))
    ]
    failed = [check for check in ours if check.status == "completed" and not check.passed]
    return failed or ours
