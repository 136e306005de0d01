"""The OpenAPI description as a page for people: no script, nothing from another host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
)
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; --get: #1a7f5a; --post: #2563c9 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin: 0 } code, summary { font-family: ui-monospace, monospace }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .5rem .8rem }
summary { cursor: pointer; overflow-wrap: anywhere } summary span { font-family: system-ui }
b.method { display: inline-block; min-width: 4.2rem; color: var(--post) }
b.get { color: var(--get) }
.soft { color: var(--soft) }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-size: .9rem }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere }
"""


def page_of(openapi: Mapping[str, Any]) -> str:
    info = openapi["info"]
    models = openapi.get("components", {}).get("schemas", {})
    return "".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(info['title'])} <span class='soft'>{escape(info['version'])}</span></h1>",
            f"<p>{escape(info.get('description', ''))}</p>",
            "<p>For programs: <a href='openapi.json'>openapi.json</a></p>",
            "<main><h2>Routes</h2>",
            *_operations(openapi["paths"]),
            "<h2>Bodies</h2>",
            *(_model(name, schema) for name, schema in sorted(models.items())),
            "</main></body></html>",
        ]
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in sorted(paths.items()):
        for method in _METHODS:
            if method in operations:
                yield _operation(method, path, operations[method])


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = [
        (each["name"], f"{each['in']}, {_type(each['schema'])}", each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    responses = [
        (status, _type(_body_schema(each)), each["description"])
        for status, each in sorted(operation["responses"].items())
    ]
    summary = escape(operation.get("summary", ""))
    return (
        f"<details><summary><b class='method {method}'>{method.upper()}</b> {escape(path)} "
        f"<span class='soft'>{summary}</span></summary>"
        f"<p>{escape(operation.get('description', ''))}</p>"
        f"{_table(('Parameter', 'Kind', ''), parameters)}"
        f"{_table(('Body', 'Type', ''), _fields(_body_schema(operation.get('requestBody', {}))))}"
        f"{_table(('Status', 'Body', ''), responses)}</details>"
    )


def _model(name: str, schema: Mapping[str, Any]) -> str:
    return (
        f"<details id='{escape(name)}'><summary>{escape(name)}</summary>"
        f"<p>{escape(schema.get('description', ''))}</p>"
        f"{_table(('Field', 'Type', ''), _fields(schema))}</details>"
    )


def _fields(schema: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    required = schema.get("required", ())
    return [
        (field, _type(each) + ("" if field in required else ", optional"), _about(each))
        for field, each in schema.get("properties", {}).items()
    ]


def _about(schema: Mapping[str, Any]) -> str:
    text: str = schema.get("description", "")
    return text


def _body_schema(response: Mapping[str, Any]) -> Mapping[str, Any]:
    for content in response.get("content", {}).values():
        schema: Mapping[str, Any] = content.get("schema", {})
        return schema
    return {}


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("format") or schema.get("type") or "any JSON")
    return f"list of {_type(schema['items'])}" if "items" in schema else kind


def _table(heads: tuple[str, str, str], rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(about)}</td></tr>"
        for name, kind, about in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
