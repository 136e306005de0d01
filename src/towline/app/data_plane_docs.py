"""The routes that are plain ASGI, as OpenAPI: webhooks and the submit API.

FastAPI cannot know of them. Bodies of the submit API are models here; the readers in `core` decide
what is accepted, and schemathesis finds where the two differ.
"""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, Field, StringConstraints
from pydantic.config import JsonDict

from towline.forges.github import webhooks as github
from towline.forges.gitlab import webhooks as gitlab
from towline.http.openapi import schema_of
from towline.http.problem_docs import described
from towline.integrations import generic_ci, scheduler, slack
from towline.integrations.jenkins import webhooks as jenkins
from towline.integrations.jira import webhooks as jira
from towline.submit.rules import (
    LONGEST_KEY,
    LONGEST_KIND,
    LONGEST_NODE_ID,
    LONGEST_WORKER,
    MOST_KINDS,
)

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_LARGEST: Final = 2**53 - 1
_PRINTABLE: Final = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""Necessary, not sufficient: a JSON pattern cannot say 'printable', the descriptions do."""

_ASCII: Final = {"type": "string", "pattern": "^[!-~]([ -~]{0,198}[!-~])?$"}

Kind = Annotated[str, StringConstraints(pattern=rf"^[A-Za-z0-9._-]{{1,{LONGEST_KIND}}}$")]
Token = Annotated[int, Field(ge=0, le=_LARGEST, description="Of the claim, without a fraction.")]
LeaseSeconds = Annotated[
    float | None, Field(ge=1, description="The service may shorten it; the answer has its end.")
]
Moment = Annotated[datetime, Field(description="ISO 8601, in UTC.")]
Digest = Annotated[
    str | None, StringConstraints(pattern="^[0-9A-Fa-f]{64}$"), Field(description="Hexadecimal.")
]


def _printable(longest: int, description: str) -> Any:
    rules: JsonDict = {"minLength": 1, "maxLength": longest, "pattern": _PRINTABLE}
    return Field(default=None, description=description, json_schema_extra={
        "anyOf": [{"type": "string", **rules}, {"type": "null"}],
    })  # fmt: skip


class SubmitClient(BaseModel):
    node_id: str | None = _printable(LONGEST_NODE_ID, "The machine, in printable characters.")


class SubmitBody(BaseModel):
    """Work for a remote worker. With a key it is accepted once."""

    kind: Kind
    params: dict[str, Any] = Field(
        default={}, description="Numbers beyond 2^53-1 and NaN are refused (RFC 8785)."
    )
    idempotency_key: str | None = _printable(LONGEST_KEY, "Printable. The same key acts once.")
    client: SubmitClient | None = None


class Submitted(BaseModel):
    """`result`, `sha256` and `hmac` are there once it is completed, `error` once it failed."""

    ok: Literal[True]
    request_id: str
    job_id: str
    dedup: bool = Field(description="Whether the key was known.")
    status: Literal["accepted", "in_progress", "completed", "failed"]
    deferred: bool = Field(default=False, description="Whether it has to wait for others.")
    result: Any = None
    sha256: str | None = None
    hmac: str | None = None
    error: str | None = None


class RequestStatus(BaseModel):
    ok: Literal[True]
    request_id: str
    job_id: str
    kind: str
    status: Literal["accepted", "in_progress", "completed", "failed"]
    attempts: int
    created_at: Moment
    updated_at: Moment
    finished_at: datetime | None
    result: Any
    sha256: str | None
    hmac: str | None
    error: str | None
    reason: str | None


class ClaimBody(BaseModel):
    """Jobs of the first kinds are offered first."""

    kinds: list[Kind] = Field(min_length=1, max_length=MOST_KINDS)
    worker: str = Field(
        min_length=1, max_length=LONGEST_WORKER, json_schema_extra={"pattern": _PRINTABLE},
        description="The name of the worker, in printable characters.",
    )  # fmt: skip
    lease_seconds: LeaseSeconds = 60.0


class Offer(BaseModel):
    """A job to work on."""

    job_id: str
    kind: str
    params: Any
    token: Token
    attempt: int
    lease_expires_at: Moment


class HeartbeatBody(BaseModel):
    token: Token
    lease_seconds: LeaseSeconds = None


class Extended(BaseModel):
    ok: Literal[True]
    lease_expires_at: Moment


class CompleteBody(BaseModel):
    """The digests are taken over the RFC 8785 form of the result."""

    token: Token
    result: Any = Field(default=None, description="Numbers beyond 2^53-1 and NaN are refused.")
    sha256: Digest = None
    hmac: Digest = None


class Completed(BaseModel):
    ok: Literal[True]
    job_id: str
    status: Literal["completed"]
    sha256: str


class FailBody(BaseModel):
    token: Token
    error: str = Field(description="What went wrong.")
    definitive: bool = Field(default=False, description="Whether another attempt is useless.")


class Failed(BaseModel):
    """`in_progress` if it will be tried again."""

    ok: Literal[True]
    job_id: str
    status: Literal["failed", "in_progress"]
    reason: str | None = None
    retry_in_seconds: float | None = None


class DeliveryReceipt(BaseModel):
    """The delivery is stored, or was stored before."""

    status: Literal["accepted", "duplicate_ignored", "throttled_delayed", "ignored"]
    delivery_id: str
    job_id: str | None = None
    response_type: Literal["ephemeral"] | None = Field(
        default=None, description="For a person in Slack."
    )
    text: str | None = Field(default=None, description="For a person in Slack.")


def _one_of(*names: str, schema: dict[str, Any]) -> dict[str, Any]:
    """At least one of these members has this form."""
    return {"anyOf": [{"required": [name], "properties": {name: schema}} for name in names]}


_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\x00]+$"}
_ID: Final = {"anyOf": [
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^\\x00]+$"},
    {"type": "integer"},
]}  # fmt: skip
_PATH: Final = "[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)+"
_REPO_URL: Final = f"^(https?|ssh|git)://[A-Za-z0-9]+(\\.[A-Za-z0-9]+)*/{_PATH}$"
_SCP_URL: Final = f"^git@[A-Za-z0-9]+(\\.[A-Za-z0-9]+)*:{_PATH}$"
_CI_RUN: Final[dict[str, Any]] = {
    "title": "CiRun",
    "type": "object",
    "description": "A run of a CI system. `run_id`, `job_id` or `logs_url` names it, `conclusion` "
    "or `status` says how it is.",
    "required": ["repo"],
    "properties": {
        "repo": {
            "description": "OWNER/NAME, or the URL of a repository.",
            "anyOf": [
                {
                    "type": "string",
                    "maxLength": 255,
                    "pattern": f"^{_PATH}$",
                },
                {"type": "string", "maxLength": 2048, "pattern": _REPO_URL},
                {"type": "string", "maxLength": 2048, "pattern": _SCP_URL},
            ],
        },
    },
    "allOf": [
        _one_of("run_id", "job_id", schema=_ID) | {"description": "Or `logs_url`."},
        _one_of("conclusion", "status", schema=_NAME),
    ],
}
_OF_ANY_CI: Final[dict[str, Any]] = {
    **_CI_RUN,
    "title": "NamedCiRun",
    "description": f"{_CI_RUN['description']} `provider` is the CI system.",
    "required": ["repo", "provider"],
    "properties": {**_CI_RUN["properties"], "provider": _ASCII},
}
_BUILD: Final[dict[str, Any]] = {
    "title": "JenkinsNotification",
    "type": "object",
    "description": "What Jenkins' notification plugin sends.",
    "required": ["build"],
    "properties": {
        "build": {
            "type": "object",
            "required": ["number", "phase"],
            "properties": {
                "number": _ID,
                "phase": {**_NAME, "maxLength": 64},
            },
        },
    },
    "allOf": [_one_of("url", "name", schema=_NAME | {"pattern": "[^/\\x00]"})],
}
_TICK: Final[dict[str, Any]] = {
    "title": "SchedulerTick",
    "type": "object",
    "required": ["schedule_id", "execution_time"],
    "properties": {
        "schedule_id": {**_NAME, "maxLength": 255},
        "execution_time": {"type": "string", "format": "date-time"},
    },
}
_OBJECT: Final[dict[str, Any]] = {"type": "object"}
_GITHUB_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["payload"],
    "properties": {"payload": {"type": "string", "contentMediaType": _JSON}},
}


class _Hook(NamedTuple):
    """How one sender posts."""

    source: str
    title: str
    security: tuple[str, ...]
    body: dict[str, Any]
    forms: dict[str, Any] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Required ones, each with what it is."""


_SHARED: Final = ("webhook_signature", "webhook_token")
_HOOKS: Final = (
    _Hook(github.SOURCE, "GitHub", ("github_signature",), _OBJECT, _GITHUB_FORM, (
        ("X-GitHub-Event", "The name of the event."),
        ("X-GitHub-Delivery", "The id of the delivery."),
    )),
    _Hook(gitlab.SOURCE, "GitLab", ("gitlab_token", "gitlab_signature"), _OBJECT),
    _Hook(slack.SOURCE, "Slack", ("slack_signature",), _OBJECT, _OBJECT),
    _Hook(jira.SOURCE, "Jira", _SHARED, _OBJECT),
    _Hook(jenkins.SOURCE, "Jenkins", _SHARED, _BUILD),
    _Hook(scheduler.SOURCE, "a scheduler", _SHARED, _TICK),
    _Hook(generic_ci.SOURCE, "any CI system, which the body names", _SHARED, _OF_ANY_CI),
)  # fmt: skip
_OF_PROVIDER: Final = _Hook(
    generic_ci.SOURCE, "any CI system, which the path names", _SHARED, _CI_RUN
)


def _in_header(name: str, description: str) -> dict[str, str]:
    return {"type": "apiKey", "in": "header", "name": name, "description": description}


SECURITY: Final[dict[str, Any]] = {
    "github_signature": _in_header("X-Hub-Signature-256", "`sha256=` and the HMAC of the body."),
    "gitlab_token": _in_header("X-Gitlab-Token", "The secret of the webhook."),
    "gitlab_signature": _in_header("webhook-signature", "As Standard Webhooks says."),
    "slack_signature": _in_header(
        "X-Slack-Signature", "`v0=` and the HMAC of `v0:X-Slack-Request-Timestamp:body`."
    ),
    "webhook_signature": _in_header("X-Hub-Signature-256", "`sha256=` and the HMAC of the body."),
    "webhook_token": _in_header("X-Towline-Token", "The secret itself."),
}
_KEYS: Final = ("bearer_key", "header_key")


class _Route(NamedTuple):
    """An operation in few words; what is left out is the same for all."""

    operation_id: str
    description: str
    tag: str
    security: tuple[str, ...]
    answers: dict[int, type[BaseModel] | None]
    problems: tuple[int | str, ...]
    bodies: dict[str, dict[str, Any]] | None = None
    path_id: tuple[str, dict[str, Any]] | None = None
    headers: tuple[tuple[str, str], ...] = ()


def _operation(route: _Route) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, model in route.answers.items():
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if model is not None:
            answer["content"] = {_JSON: {"schema": schema_of(model)}}
        responses[str(status)] = answer
    parameters = [
        {"name": name, "in": "header", "required": True, "description": text, "schema": _ASCII}
        for name, text in route.headers
    ]
    if route.path_id is not None:
        name, schema = route.path_id
        parameters.insert(0, {"name": name, "in": "path", "required": True, "schema": schema})
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "description": route.description,
        "tags": [route.tag],
        "security": [{name: []} for name in route.security],
        "responses": responses | described(*route.problems),
    }
    if parameters:
        operation["parameters"] = parameters
    if route.bodies is not None:
        content = {media: {"schema": schema} for media, schema in route.bodies.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _hook(hook: _Hook, operation_id: str, *, of_provider: bool = False) -> dict[str, Any]:
    bodies = {_JSON: hook.body} | ({_FORM: hook.forms} if hook.forms is not None else {})
    operation = _operation(
        _Route(
            operation_id,
            f"A delivery of {hook.title}. It is stored before it is answered.",
            "webhooks",
            hook.security,
            {202: DeliveryReceipt, 200: DeliveryReceipt},
            (400, "repeated_header", "bad_signature", "no_secret", "outside_window", 408, 413,
             "busy", "store_unavailable"),
            bodies,
            ("provider", _ASCII) if of_provider else None,
            hook.headers,
        )
    )  # fmt: skip
    if hook.source == slack.SOURCE:
        text = {"schema": {"type": "string"}, "description": "The challenge of `url_verification`."}
        operation["responses"]["200"]["content"]["text/plain"] = {"schema": text["schema"]}
    return {"post": operation}


def _mesh(
    operation_id: str,
    description: str,
    body: type[BaseModel],
    answers: dict[int, type[BaseModel] | None],
    *problems: int | str,
    of_job: bool = False,
) -> dict[str, Any]:
    usual = (400, 401, 403, 408, 413, "store_unavailable")
    schema = schema_of(body)
    return {
        "post": _operation(
            _Route(
                operation_id, description, "mesh", _KEYS, answers, (*usual, *problems),
                {_JSON: schema}, ("job_id", _PATH_ID) if of_job else None,
            )
        )
    }  # fmt: skip


_PATH_ID: Final = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_OF_JOB: Final = ("invalid_request", "stale_lease", "unknown_job", "not_found")

PATHS: Final[dict[str, Any]] = {
    **{
        f"/webhooks/{hook.source}": _hook(hook, f"receive_{hook.source}_webhook")
        for hook in sorted(_HOOKS)
    },
    f"/webhooks/{generic_ci.SOURCE}/{{provider}}": _hook(
        _OF_PROVIDER, "receive_provider_webhook", of_provider=True
    ),
    "/mesh/submit_request": _mesh(
        "submit_request", "Submit work, once by its key.", SubmitBody, {200: Submitted},
        "invalid_request", "key_collision", "queue_full",
    ),
    "/mesh/requests/{request_id}": {
        "get": _operation(
            _Route(
                "get_request", "How a request stands, and its result.", "mesh", _KEYS,
                {200: RequestStatus},
                (401, 403, "unknown_request", "not_found", "store_unavailable"),
                path_id=("request_id", _PATH_ID),
            )
        )
    },
    "/mesh/claim": _mesh(
        "claim_job", "Take a job to work on; 204 if there is none.", ClaimBody,
        {200: Offer, 204: None}, "invalid_request",
    ),
    "/mesh/jobs/{job_id}/heartbeat": _mesh(
        "extend_job", "Extend the lease of a job.", HeartbeatBody, {200: Extended}, *_OF_JOB,
        of_job=True,
    ),
    "/mesh/jobs/{job_id}/complete": _mesh(
        "complete_job", "Hand in the result of a job.", CompleteBody, {200: Completed}, *_OF_JOB,
        "bad_digest", of_job=True,
    ),
    "/mesh/jobs/{job_id}/fail": _mesh(
        "fail_job", "Report that a job failed.", FailBody, {200: Failed}, *_OF_JOB, of_job=True,
    ),
}  # fmt: skip

FRAGMENT: Final = {"paths": PATHS, "components": {"securitySchemes": SECURITY}}
