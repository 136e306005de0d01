"""Any other CI system, by a small JSON of our own; docs/reference/sources.md has its members.

The delivery id is the `Idempotency-Key` header if there is one. `X-Request-ID` is not: proxies
set it anew for each attempt, and a retry would pass for another delivery. Otherwise it is a hash
of what names a run and its end (specification 1). The parts are hashed as a JSON array of texts
and nulls, so that no two lists of parts have one text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import orjson

from towline.events import AdvisoryReported, CheckChanged, Event
from towline.forges import payload as reading
from towline.forges.delivery import Delivery, Headers, Malformed
from towline.forges.payload import Object, Outcome, outcome_of, outcome_of_two
from towline.forges.signature import authenticate, check_shared
from towline_once import keys

SOURCE: Final = "ci"


def receive(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool = False,
    provider: str | None = None,
) -> Delivery:
    """Read a delivery; `provider` is the one of the route, and wins over that of the body."""
    authenticate(check_shared, headers, body, secrets, now, allow_unsigned=allow_unsigned)
    given = reading.header(headers, "idempotency-key") or reading.header(
        headers, "x-idempotency-key"
    )
    payload = reading.json_object(body)
    name = _provider(payload, provider)
    _check_members(payload)
    delivery_id = given or fallback_id(name, payload)
    return Delivery(
        key=keys.Ci(name, delivery_id),
        delivery_id=delivery_id,
        source=SOURCE,
        event_name=reading.text(payload, "event", reading.LONGEST_ID) or "run",
        repo=_repo(payload),
        payload=payload,
        events=read(name, payload),
    )


def read(provider: str, payload: Object) -> tuple[Event, ...]:
    """What was checked, if a commit or a pull request says so, and the member `advisory`."""
    advisory = _advisory(payload)
    return (*_check(provider, payload), *(() if advisory is None else (advisory,)))


def _advisory(payload: Object) -> AdvisoryReported | None:
    given, repo = reading.inner(payload, "advisory"), _repo(payload)
    advisory_id, package = reading.line(given, "id"), reading.line(given, "package")
    if repo is None or not advisory_id or not package:
        return None
    return AdvisoryReported(
        source=SOURCE,
        repo=repo,
        advisory_id=advisory_id,
        package=package,
        ecosystem=reading.line(given, "ecosystem") or "pip",
        vulnerable=reading.line(given, "vulnerable"),
        fixed=reading.line(given, "fixed") or None,
        severity=reading.line(given, "severity"),
        summary=reading.line(given, "summary"),
        url=reading.url(given, "url"),
        branch=reading.line(payload, "branch"),
    )


def _check(provider: str, payload: Object) -> tuple[CheckChanged, ...]:
    head_sha, number = reading.commit(payload, "head_sha"), reading.number(payload, "pr")
    if head_sha is None and number is None:
        return ()
    outcome = _outcome(payload)
    changed = CheckChanged(
        source=SOURCE,
        repo=_repo(payload),
        occurred_at=reading.moment(payload, "occurred_at"),
        check="build",
        name=reading.text(payload, "name") or provider,
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        pr_numbers=(number,) if number else (),
        branch=reading.text(payload, "branch"),
        run_id=reading.ident(payload, "run_id"),
        attempt=reading.number(payload, "attempt"),
        job_id=reading.ident(payload, "job_id"),
        app=provider,
        summary=reading.prose(payload, "summary"),
        url=reading.url(payload, "url"),
        logs_url=reading.url(payload, "logs_url"),
    )
    return (changed,)


def fallback_id(provider: str, payload: Object) -> str:
    parts = [
        provider,
        _repo(payload),
        reading.ident(payload, "run_id"),
        reading.ident(payload, "attempt"),
        reading.text(payload, "conclusion") or reading.text(payload, "status"),
        reading.ident(payload, "job_id"),
        reading.text(payload, "logs_url", reading.LONGEST_URL),
    ]
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


def _check_members(payload: Object) -> None:
    """Refuse what could not be told from another run: it would be dropped as its duplicate."""
    if _repo(payload) is None:
        raise Malformed("repo must be owner/name, or the URL of a repository")
    if not any(reading.ident(payload, name) for name in ("run_id", "job_id", "logs_url")):
        raise Malformed("run_id, job_id or logs_url must name the run")
    if not any(reading.text(payload, name) for name in ("conclusion", "status")):
        raise Malformed("conclusion or status must tell how the run stands")


def _provider(payload: Object, of_route: str | None) -> str:
    name = of_route or reading.text(payload, "provider", reading.LONGEST_ID)
    if not name or len(name) > reading.LONGEST_ID or not (name.isascii() and name.isprintable()):
        raise Malformed("the provider must be named, in printable ASCII")
    return name


def _repo(payload: Object) -> str | None:
    named = payload.get("repo")
    return reading.repo_name(named) or reading.repo_of_url(named)


def _outcome(payload: Object) -> Outcome:
    status, conclusion = reading.text(payload, "status"), reading.text(payload, "conclusion")
    if conclusion:
        return outcome_of_two(status, conclusion)
    return outcome_of(status or "")
