"""Refusals, as GitHub words them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

DOCUMENTATION: Final = "https://docs.github.com/rest"


class Problem(Exception):
    """An answer that is a refusal, with GitHub's message."""

    def __init__(
        self,
        status: int,
        message: str,
        errors: Sequence[Mapping[str, Any] | str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = errors
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"message": self.message, "documentation_url": DOCUMENTATION}
        if self.errors:
            body["errors"] = list(self.errors)
        return body | {"status": str(self.status)}


def not_found() -> NoReturn:
    raise Problem(404, "Not Found")


def invalid(where: str, code: str, message: str = "Validation Failed") -> NoReturn:
    raise Problem(422, message, [{"resource": "Request", "field": where, "code": code}])
