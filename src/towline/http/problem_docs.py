"""The codes of all problems, and how a route declares which of them it can answer.

`documented` is for `responses=` of a FastAPI route. A number stands for the usual codes of that
status, a word for one code: `documented(503, "unknown_pull", "not_now")`. The OpenAPI lists the
codes of each status in words, and for programs in `x-problem-codes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

CODES_MEMBER: Final = "x-problem-codes"

_CODES: Final[Mapping[int, Mapping[str, str]]] = {
    400: {
        "malformed": "the body is no JSON, or JSON with a member twice or with NaN",
        "incomplete": "the body ended before it was complete",
        "bad_request": "the request breaks the rules of HTTP",
        "repeated_header": "a header that the source reads is there twice",
        "key_invalid": "the idempotency key is too long or has characters that are not allowed",
    },
    401: {
        "unauthorized": "there is no API key, or it is not valid",
        "bad_signature": "the signature or the token does not match",
        "no_secret": "the source has no secret configured",
        "outside_window": "the signature is too old or too far ahead",
    },
    403: {"forbidden": "the API key lacks the scope"},
    404: {
        "not_found": "there is no such thing",
        "unknown_pull": "the pull request is not under tow",
        "unknown_repo": "no repository under tow has this name",
        "unknown_run": "there is no such fix run",
        "unknown_job": "there is no such job",
        "unknown_request": "there is no such request of this client",
        "unknown_breaker": "there is no such circuit breaker",
        "unknown_source": "there is no such source of webhooks",
    },
    405: {"method_not_allowed": "the path does not take this method"},
    408: {"too_slow": "the body did not arrive in time"},
    409: {
        "conflict": "something else holds or used it",
        "ambiguous": "several things have this name",
        "not_now": "the state does not allow it",
        "no_credentials": "there is no token for the forge that the command needs",
        "not_blocked": "the fix run is not blocked",
        "in_flight": "it waits or runs already",
        "key_collision": "the idempotency key was used with another body",
        "stale_lease": "the lease ended or passed to another worker",
    },
    413: {"too_large": "the body is too large"},
    421: {"host_not_allowed": "the service does not answer to the name in `Host`"},
    422: {
        "invalid_request": "a parameter or a member of the body is wrong; `errors` lists them",
        "rejected": "the input is not allowed",
        "unknown_command": "there is no such command",
        "too_many": "more pull requests match than one request may name",
        "bad_digest": "the digest is not that of the result",
    },
    429: {
        "queue_full": "too much work is waiting",
        "too_many_attempts": "too many wrong keys came from this address",
    },
    431: {"head_too_large": "the head of the request is too large"},
    503: {
        "store_unavailable": "the database does not answer",
        "store_full": "the store holds its maximum of records",
        "try_again": "the work was not done and may be tried again",
        "not_ready": "the service cannot do its work; `parts` says what is missing",
        "busy": "too much is under way at once",
    },
}
_USUAL: Final[Mapping[int, tuple[str, ...]]] = {
    400: ("malformed", "incomplete"),
    401: ("unauthorized",),
    404: ("not_found",),
    409: ("conflict",),
    422: ("invalid_request", "rejected"),
    503: ("store_unavailable", "store_full", "try_again"),
}
_HEADERS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("WWW-Authenticate", "How to authenticate, where an API key is asked for."),
    405: ("Allow", "The methods that the path takes."),
    409: ("Retry-After", "Seconds to wait, where waiting helps."),
    429: ("Retry-After", "Seconds to wait."),
    503: ("Retry-After", "Seconds to wait."),
}
_STATUS_OF: Final[Mapping[str, int]] = {
    code: status for status, codes in _CODES.items() for code in codes
}


class Problem(BaseModel):
    """Every error answer has this form (RFC 9457). Programs use `code`, people read `detail`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:towline:problem:not_found"])
    title: str
    status: int
    detail: str
    code: str = Field(examples=["not_found"])


def documented(*what: int | str) -> dict[int | str, dict[str, Any]]:
    """These statuses and codes as problems, for the `responses` of a route."""
    return {
        status: {"model": Problem, **_about(status, codes)}
        for status, codes in sorted(_by_status(what).items())
    }


def described(*what: int | str) -> dict[str, Any]:
    """The same as plain OpenAPI, for a route that FastAPI does not serve."""
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {
        str(status): {
            **_about(status, codes),
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status, codes in sorted(_by_status(what).items())
    }


def extended(responses: Mapping[str, Any], *what: int | str) -> dict[str, Any]:
    """These responses in plain OpenAPI, with further statuses and codes."""
    declared: dict[str, Any] = dict(responses)
    for status, codes in _by_status(what).items():
        known = declared.get(str(status), {}).get(CODES_MEMBER, ())
        added = described(*dict.fromkeys((*known, *codes)))
        declared |= added
    return dict(sorted(declared.items()))


def _by_status(what: Iterable[int | str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for one in what:
        if isinstance(one, str):
            found.setdefault(_STATUS_OF[one], []).append(one)
        else:
            found.setdefault(one, []).extend(_USUAL.get(one) or _CODES[one])
    return found


def _about(status: int, codes: list[str]) -> dict[str, Any]:
    meanings = "; ".join(f"`{code}`: {_CODES[status][code]}" for code in codes)
    about: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}. {meanings}.",
        CODES_MEMBER: codes,
    }
    if status in _HEADERS:
        name, text = _HEADERS[status]
        about["headers"] = {name: {"description": text, "schema": {"type": "string"}}}
    return about
