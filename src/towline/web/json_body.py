"""Bodies of requests to the control plane: of bounded size and patience, and of one meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from towline.core.canonical import parse_json
from towline.errors import Rejected
from towline.web.answers import Hangup, Problem, read_body

MOST_BYTES: Final = 262_144
_SECONDS: Final = 10.0

M = TypeVar("M", bound=BaseModel)


class JsonBody(Generic[M]):
    """A dependency: the body as this model. What may be missing entirely has a `default`."""

    def __init__(self, model: type[M], default: M | None = None) -> None:
        self._model = model
        self._default = default

    async def __call__(self, request: Request) -> M:
        try:
            raw = await read_body(request.scope, request.receive, MOST_BYTES, _SECONDS)
            if not raw.strip() and self._default is not None:
                return self._default
            return self._model.model_validate(parse_json(raw))
        except Hangup:
            raise Problem(400, "incomplete", "the body ended before it was complete") from None
        except Rejected as error:
            raise Problem(400, "malformed", str(error)) from None
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
            placed = [{**one, "loc": ("body", *one["loc"])} for one in found]
            raise RequestValidationError(placed) from None

    @property
    def described(self) -> dict[str, Any]:
        """For `openapi_extra` of the route."""
        schema = self._model.model_json_schema()
        schema = _inlined(schema, schema.pop("$defs", {}))
        content = {"application/json": {"schema": schema}}
        return {"requestBody": {"required": self._default is None, "content": content}}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Without references, which would point nowhere in the OpenAPI."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(each, definitions) for name, each in schema.items()}
