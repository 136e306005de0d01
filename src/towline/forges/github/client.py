"""GitHub's API: the client for it, and the limits that GitHub documents and tells.

A rate limit pauses all calls, any other refusal (403) only calls about the same thing. What GitHub
says is used up is not tried: it would count against us.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

import httpx2
from prometheus_client import Gauge

from towline.forges.base import Allowance
from towline.forges.client import (
    Answer,
    ApiClient,
    Call,
    Limits,
    Outcome,
    allowance_in,
    checked_token,
    retry_after_seconds,
    seconds_of,
)
from towline.forges.github.rate_limit import Pace
from towline_once.ports import Clock

API_VERSION: Final = "2022-11-28"
_MAX_BODY: Final = 64 * 1024 * 1024
_HEADERS: Final = {
    "accept": "application/vnd.github+json",
    "x-github-api-version": API_VERSION,
}
_REMAINING: Final = Gauge(
    "towline_forge_allowance_remaining",
    "What is left of a forge's rate limit, as its last answer told",
    ["forge", "resource"],
)


class GitHubLimits(Limits):
    """`pace` keeps the secondary limits from our side."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        super().__init__(clock)
        self._pace = pace
        self._allowances: dict[str, Allowance] = {}

    @contextlib.asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[None]:
        if call.kind == "write":
            async with self._pace.writing():
                yield
        else:
            self._pace.spend_read()
            yield

    def scopes(self, call: Call) -> Iterator[str]:
        yield from super().scopes(call)
        yield _resource("graphql" if call.kind == "graphql" else "core")
        yield call.about

    def asks_to_wait(self, call: Call, answer: Answer) -> str | None:
        if answer.status not in (403, 429):
            return super().asks_to_wait(call, answer)
        if _is_limit(answer):
            return call.url.host
        return None if answer.status in call.also else call.about

    def note(self, call: Call, answer: Answer, outcome: Outcome) -> int:
        super().note(call, answer, outcome)
        resource = answer.headers.get("x-ratelimit-resource", "core")
        told = allowance_in(answer.headers, "x-ratelimit")
        if told is not None and resource in ("core", "graphql"):
            self._allowances[resource] = told
            self.allowance = min(
                self._allowances.values(), key=lambda one: one.remaining / max(one.limit, 1)
            )
            _REMAINING.labels("github", resource).set(told.remaining)
        if told is not None and not told.remaining and outcome in ("ok", "unchanged", "refused"):
            seconds = (told.reset_us - answer.now_us) / 1e6
            if seconds > 0:
                self.pause(_resource(resource), seconds, "GitHub's rate limit is used up")
        return int(call.kind != "graphql" and outcome in ("ok", "refused"))

    def reset_us(self, headers: Mapping[str, str]) -> int | None:
        reset = headers.get("x-ratelimit-reset", "")
        is_spent = headers.get("x-ratelimit-remaining") == "0"
        return int(reset[:12]) * 1_000_000 if is_spent and reset.isdecimal() else None


def github_client(
    api_url: str, clock: Clock, *, deadline_seconds: float = 15.0, pace: Pace | None = None
) -> ApiClient:
    """A client that only reads now and then needs no `pace` of its own."""
    pace = pace or Pace(clock, longest_wait=deadline_seconds)
    return ApiClient(
        "GitHub",
        api_url,
        clock,
        headers=_HEADERS,
        limits=GitHubLimits(clock, pace),
        deadline_seconds=deadline_seconds,
        max_body=_MAX_BODY,
    )


def bearer(token: str) -> str:
    return f"Bearer {checked_token(token, 'GitHub')}"


def date_us(text: str | None) -> int | None:
    seconds = seconds_of(text)
    return None if seconds is None else int(seconds * 1_000_000)


def links_of(headers: Mapping[str, str]) -> Mapping[str | None, Mapping[str, str]]:
    """The links of an answer, by their relation."""
    link = headers.get("link", "").encode("utf-8", "replace")
    return httpx2.Response(200, headers={b"link": link}).links


def _is_limit(answer: Answer) -> bool:
    """GitHub limits with 403 as well as with 429."""
    headers, said = answer.headers, answer.says.lower()
    return (
        answer.status == 429
        or "rate limit" in said
        or "abuse detection" in said
        or retry_after_seconds(headers.get("retry-after"), answer.now_us / 1e6) is not None
        or headers.get("x-ratelimit-remaining") == "0"
    )


def _resource(name: str) -> str:
    return f" {name}"  # no thing that is asked about begins with a space
