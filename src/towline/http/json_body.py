"""Reads the body of a request to the control plane: bounded in size and time, strict JSON."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from towline.http.openapi import schema_of
from towline_once.asgi.messages import Hangup, Problem, read_body
from towline_once.canonical_json import parse_json
from towline_once.errors import Rejected

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
        content = {"application/json": {"schema": schema_of(self._model)}}
        return {"requestBody": {"required": self._default is None, "content": content}}
