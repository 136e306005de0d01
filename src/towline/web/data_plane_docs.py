"""The plain ASGI routes in OpenAPI, which FastAPI cannot know of."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from towline.sources import SOURCES, ci

_TEXT: Final = {"type": "string"}
_TIME: Final = {"type": ["string", "null"], "format": "date-time"}
_ANY: Final[dict[str, Any]] = {}
_PROBLEM: Final = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


_RECEIPT: Final = _object(
    "status delivery_id",
    status={"enum": ["accepted", "duplicate_ignored", "throttled_delayed"]},
    delivery_id=_TEXT,
    job_id={"type": ["string", "null"]},
    response_type={"const": "ephemeral"},
    text=_TEXT,
)
_SUBMISSION: Final = _object(
    "kind",
    kind={"type": "string", "pattern": "^[A-Za-z0-9._-]{1,100}$"},
    params={"type": "object"},
    idempotency_key={"type": ["string", "null"], "minLength": 1, "maxLength": 255},
    client=_object("", node_id=_TEXT),
)
_SUBMITTED: Final = _object(
    "ok request_id job_id dedup status",
    ok={"type": "boolean"},
    request_id=_TEXT,
    job_id=_TEXT,
    dedup={"type": "boolean"},
    status={"enum": ["accepted", "in_progress", "completed", "failed"]},
    deferred={"type": "boolean"},
    result=_ANY,
)
_REQUEST: Final = _object(
    "ok request_id job_id kind status", request_id=_TEXT, job_id=_TEXT, kind=_TEXT, status=_TEXT,
    attempts={"type": "integer"}, result=_ANY, sha256={"type": ["string", "null"]},
    hmac={"type": ["string", "null"]}, error={"type": ["string", "null"]}, finished_at=_TIME,
)  # fmt: skip
_CLAIM: Final = _object(
    "kinds worker",
    kinds={"type": "array", "items": _TEXT, "minItems": 1},
    worker=_TEXT,
    lease_seconds={"type": "number", "exclusiveMinimum": 0},
)
_OFFER: Final = _object(
    "job_id kind params token attempt lease_expires_at",
    job_id=_TEXT, kind=_TEXT, params=_ANY, token={"type": "integer"},
    attempt={"type": "integer"}, lease_expires_at=_TIME,
)  # fmt: skip
_TOKEN: Final = {"type": "integer"}
_OK: Final = _object("ok", ok={"type": "boolean"})


def _operation(
    summary: str,
    tag: str,
    answers: dict[int, dict[str, Any] | None],
    problems: tuple[int, ...],
    *parameters: str,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {
            "description": HTTPStatus(status).phrase,
            **({"content": {"application/json": {"schema": schema}}} if schema else {}),
        }
        for status, schema in answers.items()
    }
    for status in problems:
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": _PROBLEM,
        }
    operation: dict[str, Any] = {"summary": summary, "tags": [tag], "responses": responses}
    if parameters:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _hook(summary: str, *parameters: str) -> dict[str, Any]:
    answers: dict[int, dict[str, Any] | None] = {202: _RECEIPT, 200: _RECEIPT}
    problems = (400, 401, 404, 405, 408, 413, 503)
    return {
        "post": _operation(
            summary, "webhooks", answers, problems, *parameters, body={"type": "object"}
        )
    }


_REFUSALS: Final = (400, 401, 403, 404, 405, 408, 409, 413, 422, 503)


def _mesh(
    summary: str, answer: dict[str, Any], body: dict[str, Any], *parameters: str
) -> dict[str, Any]:
    return {"post": _operation(summary, "mesh", {200: answer}, _REFUSALS, *parameters, body=body)}


PATHS: Final[dict[str, Any]] = {
    **{
        f"/webhooks/{source}": _hook(f"A delivery of {source}, signed as it signs")
        for source in sorted(SOURCES)
    },
    f"/webhooks/{ci.SOURCE}/{{provider}}": _hook("A delivery of any other CI system", "provider"),
    "/mesh/submit_request": {
        "post": _operation(
            "Submit work, once by its key", "mesh", {200: _SUBMITTED}, (*_REFUSALS, 429),
            body=_SUBMISSION,
        )
    },
    "/mesh/requests/{request_id}": {
        "get": _operation(
            "How a request stands", "mesh", {200: _REQUEST}, (401, 403, 404, 405, 503),
            "request_id",
        )
    },
    "/mesh/claim": {
        "post": _operation(
            "Take a job to work on", "mesh", {200: _OFFER, 204: None}, _REFUSALS, body=_CLAIM
        )
    },
    "/mesh/jobs/{job_id}/heartbeat": _mesh(
        "Keep a job", _OK, _object("token", token=_TOKEN, lease_seconds={"type": "number"}),
        "job_id",
    ),
    "/mesh/jobs/{job_id}/complete": _mesh(
        "Hand in a result", _OK,
        _object("token result", token=_TOKEN, result=_ANY, sha256=_TEXT, hmac=_TEXT), "job_id",
    ),
    "/mesh/jobs/{job_id}/fail": _mesh(
        "Tell that it failed", _OK,
        _object("token error", token=_TOKEN, error=_TEXT, definitive={"type": "boolean"}),
        "job_id",
    ),
}  # fmt: skip
