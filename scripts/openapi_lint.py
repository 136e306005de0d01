"""Lint the OpenAPI documents of every address that `towline serve` can have.

`make check` runs it. It exits with 1 and one line for each mistake.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from openapi_spec_validator import OpenAPIV31SpecValidator

from towline.app.gateway import Gateway, ProbesOnly
from towline.app.service import Service
from towline.app.web import apps_of
from towline.config import Settings
from towline.http.openapi import PROBLEM_TYPE, operations_of, references_in
from towline.http.problem_docs import CODES_MEMBER

Document = Mapping[str, Any]
_ID = re.compile(r"[a-z]+(_[a-z]+)+")
_OPEN_TO_ALL = ("get_health", "get_readiness")


def documents() -> dict[str, Document]:
    """By address: one for both planes, and each plane alone."""
    together, _ = _apps_of({})
    data, control = _apps_of({"serve": {"control_port": 8789}})
    return {
        "one address": together.openapi(),
        "control plane": control.openapi(),
        "data plane": data,
    }


def complaints_about(document: Document) -> Iterator[str]:
    """What is wrong with a document, a line each."""
    if not str(document.get("openapi", "")).startswith("3.1."):
        yield f"openapi is {document.get('openapi')}, not 3.1"
    unresolved = [one for one in set(references_in(document)) if not _resolves(one, document)]
    yield from (f"{reference} does not resolve" for reference in sorted(unresolved))
    if not unresolved:  # the validator follows references, and stops at one that leads nowhere
        yield from _not_valid(document)
    seen: set[str] = set()
    for operation in operations_of(document):
        name = operation.get("operationId", "")
        if name in seen:
            yield f"two operations are called {name}"
        seen.add(name)
        for complaint in _complaints_about(operation, document):
            yield f"{name or 'an operation without operationId'}: {complaint}"


def _not_valid(document: Document) -> Iterator[str]:
    try:
        for error in OpenAPIV31SpecValidator(document).iter_errors():
            yield f"not valid OpenAPI 3.1: {error.message[:300]}"
    except Exception as error:  # it also stumbles over what it has just found to be wrong
        yield f"not valid OpenAPI 3.1: {error!r}"


def _complaints_about(operation: Document, document: Document) -> Iterator[str]:
    name = operation.get("operationId", "")
    if not _ID.fullmatch(name):
        yield "operationId is verb_noun in snake_case"
    for member in ("summary", "description", "tags"):
        if not operation.get(member):
            yield f"{member} is missing"
    known = {tag["name"] for tag in document.get("tags", ())}
    if not known.issuperset(operation.get("tags", ())):
        yield "a tag is not described in `tags`"
    responses = operation["responses"]
    if name in _OPEN_TO_ALL:
        if operation.get("security"):
            yield "a probe needs no key"
    else:
        yield from _security_complaints(operation, document)
        if not {"401", "503"} <= responses.keys():
            yield "401 and 503 are not declared"
    for status, response in responses.items():
        if status >= "400" and not _is_problem(response):
            yield f"{status} is no problem+json with {CODES_MEMBER}"


def _security_complaints(operation: Document, document: Document) -> Iterator[str]:
    schemes = document["components"].get("securitySchemes", {})
    if not operation.get("security"):
        yield "security is missing"
    for alternative in operation.get("security", ()):
        for scheme in alternative.keys() - schemes.keys():
            yield f"the security scheme {scheme} does not exist"


def _is_problem(response: Document) -> bool:
    content = response.get("content", {})
    schema = content.get(PROBLEM_TYPE, {}).get("schema", {})
    return (
        list(content) == [PROBLEM_TYPE]
        and schema.get("$ref") == "#/components/schemas/Problem"
        and bool(response.get(CODES_MEMBER))
    )


def _resolves(reference: str, document: Document) -> bool:
    place: Any = document
    first, *parts = reference.split("/")
    for part in parts:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, Mapping) or name not in place:
            return False
        place = place[name]
    return first == "#"


def _apps_of(more: Mapping[str, Any]) -> tuple[Any, FastAPI]:
    """The app of the first address, or the document of a data plane alone; and the control app."""
    settings = Settings.model_validate({"database_url": "sqlite:///:memory:", **more})
    gateway, control = apps_of(Service(settings))
    assert isinstance(gateway, Gateway)
    assert isinstance(control, FastAPI)
    probes = gateway.rest
    return (probes.document if isinstance(probes, ProbesOnly) else control), control


def main() -> int:
    found = [
        f"{address}: {complaint}"
        for address, document in documents().items()
        for complaint in complaints_about(document)
    ]
    print("\n".join(found) or "The OpenAPI documents are in order.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
