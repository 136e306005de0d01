"""GitHub's own description of its REST API, as something to hold answers against."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "github-openapi"


@functools.cache
def description() -> dict[str, Any]:
    files = sorted(FOLDER.glob("*.json"))
    if not files:
        pytest.skip("GitHub's OpenAPI description is not here: ../shared/data/github-openapi")
    found: dict[str, Any] = json.loads(files[-1].read_text())
    return found


def operations() -> list[tuple[str, str]]:
    """Method and path of all that the description has; none where it is absent."""
    if not list(FOLDER.glob("*.json")):
        return []
    return [
        (method.upper(), path)
        for path, item in description()["paths"].items()
        for method in item
        if method != "parameters"
    ]


def check(method: str, path: str, status: int, body: Any) -> None:
    """The status is described, and the body is as described for it."""
    answers = description()["paths"][path][method.lower()]["responses"]
    assert str(status) in answers, f"{method} {path} is not described to answer {status}"
    validator = _validator(method, path, status)
    if validator is None:
        assert body is None or status >= 400, f"{method} {path}: {status} has no body"
        return
    wrong = [f"{one.instance_path}: {one.message}" for one in validator.iter_errors(body)]
    assert not wrong, f"{method} {path} {status}:\n" + "\n".join(wrong[:10])


@functools.cache
def _validator(method: str, path: str, status: int) -> Any:
    answer = description()["paths"][path][method.lower()]["responses"][str(status)]
    if "$ref" in answer:
        answer = description()["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    content = answer.get("content", {}).get("application/json")
    if content is None:
        return None
    words = _plain(content["schema"])
    if status >= 400 and "oneOf" in words:
        # Its kinds of errors require no field, so that most errors are of several kinds.
        words["anyOf"] = words.pop("oneOf")
    schema = {**words, "components": _components()}
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True)


@functools.cache
def _components() -> Any:
    return {"schemas": _plain(description()["components"]["schemas"])}


def _plain(schema: Any) -> Any:
    """OpenAPI 3.0's `nullable` in the words of JSON Schema; examples are left out."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    words = {
        name: _plain(value)
        for name, value in schema.items()
        if name not in ("nullable", "example", "examples", "discriminator", "readOnly")
    }
    if schema.get("nullable") is True:
        return {"anyOf": [words, {"type": "null"}]}
    return words
