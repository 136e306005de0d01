"""The OpenAPI 3.1 document: FastAPI's own, completed and put in order.

FastAPI describes its own routes. What it does not know is added here: routes that are plain ASGI,
bodies that a dependency reads, and that errors are problem+json. Schemas that bring their own
`$defs` are moved to `components`, so that every reference resolves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from towline.http.problem_docs import CODES_MEMBER, extended
from towline_once.asgi.exchange import KEY_HEADERS, LONGEST_KEY

PROBLEM_TYPE: Final = "application/problem+json"
_COMPONENTS: Final = "#/components/schemas/"
_NAMES: Final[Mapping[str, str]] = {"HTTPBearer": "bearer_key", "APIKeyHeader": "header_key"}
_TAGS: Final[Mapping[str, str]] = {
    "fix runs": "Fixes that Towline makes, stage by stage.",
    "inbox": "Deliveries that came in, and the jobs that act on them.",
    "jobs": "Background work.",
    "mesh": "Clients submit work; remote workers claim it and report.",
    "pull requests": "Pull requests under tow, and commands for them.",
    "reconciler": "Sweeps over stale pull requests, and the circuit breakers.",
    "service": "Probes and metrics.",
    "sessions": "People who are signed in to the dashboard.",
    "webhooks": "Deliveries from forges, CI systems and chat, each signed by its sender.",
}
_Json = dict[str, Any]
_OF_THE_EDGE: Final = ("bad_request", "too_slow", "host_not_allowed", "head_too_large", "busy")
"""What any request may be answered before its route is known."""
_REPEATABLE: Final = ("/api/", "/mesh/")
_REPLAYED: Final = {
    "description": "`true` where this is the answer to an earlier request with the same key.",
    "schema": {"type": "string", "enum": ["true"]},
}
_KEY_PATTERN: Final = r'^([!#-~]([ -~]*[!-~])?|"[!#-\[\]-~]([ !#-\[\]-~]|\\["\\])*")$'
"""Printable ASCII, plain or as one quoted string."""
_KEY_PARAMETERS: Final[Sequence[_Json]] = [
    {
        "name": name,
        "in": "header",
        "required": False,
        "description": (
            "A retry with the same key gets the first answer, with `Idempotent-Replayed: true`."
            " Of several such headers, the first in this list counts."
        ),
        "schema": {"type": "string", "pattern": _KEY_PATTERN, "maxLength": LONGEST_KEY},
    }
    for name in KEY_HEADERS
]


def operation_id(route: APIRoute) -> str:
    """The name of the function: plain, stable and the same in every client."""
    return route.name


def schema_of(model: type[BaseModel], mode: Any = "validation") -> _Json:
    """The schema of a model with its `$defs`; `describe` moves it to the components."""
    schema = model.model_json_schema(ref_template=_COMPONENTS + "{model}", mode=mode)
    return {**schema, "title": model.__name__}


def describe(app: FastAPI, beside: Mapping[str, Any]) -> _Json:
    """The document of what `app` serves, and of the paths that are served in front of it."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    return complete(document, beside)


def document_of(app: FastAPI, paths: Sequence[str], beside: Mapping[str, Any]) -> _Json:
    """The document of an address that serves only these paths of `app`, and those beside it."""
    whole = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    whole["paths"] = {path: whole["paths"][path] for path in paths}
    return complete(whole, beside)


def complete(document: _Json, beside: Mapping[str, Any]) -> _Json:
    """Add a fragment of OpenAPI, its paths and security schemes, and put the whole in order."""
    added = _copied(beside)
    document.setdefault("paths", {}).update(added.get("paths", {}))
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemes = components.setdefault("securitySchemes", {})
    schemes |= added.get("components", {}).get("securitySchemes", {})
    for operation in operations_of(document):
        _settle(operation, schemas)
    _describe_repeats(document)
    _name_security(document)
    _drop_unused(document)
    used = {tag for operation in operations_of(document) for tag in operation.get("tags", ())}
    document["tags"] = [
        {"name": tag, "description": text} for tag, text in _TAGS.items() if tag in used
    ]
    return document


def operations_of(document: Mapping[str, Any]) -> Iterator[_Json]:
    for path in document["paths"].values():
        for method, operation in path.items():
            if method in ("get", "put", "post", "delete", "options", "head", "patch", "trace"):
                yield operation


def references_in(value: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "$ref" and isinstance(inner, str):
                yield inner
            else:
                yield from references_in(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from references_in(inner)


def _settle(operation: _Json, schemas: _Json) -> None:
    name: str = operation["operationId"]
    summary = operation.get("summary", "")
    if summary == summary.title():  # FastAPI made it of the function's name
        operation["summary"] = name.replace("_", " ").capitalize()
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        if status >= "400":
            [media] = content.values()
            response["content"] = content = {PROBLEM_TYPE: media}
        _hoist(content, schemas)
    _hoist(operation.get("requestBody", {}).get("content", {}), schemas)
    operation["responses"] = extended(operation["responses"], *_OF_THE_EDGE)
    if "unauthorized" in operation["responses"].get("401", {}).get(CODES_MEMBER, ()):
        operation["responses"] = extended(operation["responses"], "too_many_attempts")


def _describe_repeats(document: _Json) -> None:
    """Every write but a webhook takes a key, and a retry with it gets the first answer."""
    for path, item in document["paths"].items():
        if not path.startswith(_REPEATABLE):
            continue
        for method in item.keys() & {"post", "delete"}:
            operation = item[method]
            operation["parameters"] = [*operation.get("parameters", ()), *_KEY_PARAMETERS]
            operation["responses"] = extended(
                operation["responses"], "key_invalid", "in_flight", "key_collision"
            )
            for status, response in operation["responses"].items():
                if status.startswith("2"):
                    response.setdefault("headers", {})["Idempotent-Replayed"] = _REPLAYED


def _hoist(content: _Json, schemas: _Json) -> None:
    """Move a schema that brings its own definitions to the components."""
    for media in content.values():
        schema = media.get("schema", {})
        definitions = schema.pop("$defs", {})
        if "title" in schema and schema.get("type") == "object":
            definitions |= {schema["title"]: schema}
            media["schema"] = {"$ref": _COMPONENTS + schema["title"]}
        for name, definition in definitions.items():
            if schemas.setdefault(name, definition) != definition:
                raise ValueError(f"two different schemas are called {name}")


def _name_security(document: _Json) -> None:
    schemes = document["components"].get("securitySchemes", {})
    for old, new in _NAMES.items():
        if old in schemes:
            schemes[new] = schemes.pop(old)
    for operation in operations_of(document):
        if "security" in operation:
            operation["security"] = [
                {_NAMES.get(name, name): scopes for name, scopes in one.items()}
                for one in operation["security"]
            ]


def _drop_unused(document: _Json) -> None:
    """Schemas that nothing refers to, such as those of FastAPI's own errors."""
    schemas = document["components"]["schemas"]
    while True:
        used = {reference.rpartition("/")[2] for reference in references_in(document)}
        unused = schemas.keys() - used
        if not unused:
            return
        for name in unused:
            del schemas[name]


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner) for inner in value]
    return value
