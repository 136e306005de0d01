"""What the control plane takes and gives, as its OpenAPI shows it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

LONGEST_ID = 4096
MOST_OF_A_PAGE = 500
T = TypeVar("T")


def _storable(text: str) -> str:
    """PostgreSQL cannot store NUL, and no store can keep half a character."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it has a NUL or half a character in it")
    return text


_NO_NUL = r"^[^\x00]*$"
StorableText = Annotated[str, StringConstraints(pattern=_NO_NUL), AfterValidator(_storable)]
Limit = Annotated[int, Query(ge=1, le=MOST_OF_A_PAGE, description="How many at most.")]


_LAST_MOMENT_US = 253_402_300_799_999_999


def moment(us: int) -> datetime:
    us = min(us, _LAST_MOMENT_US)
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    status: Literal["ready"] = "ready"
    parts: Mapping[str, str] = Field(examples=[{"database": "ok"}])


class Page(BaseModel, Generic[T]):
    """The newest first. `next` goes into `before` to get the page after; null on the last."""

    items: list[T]
    next: str | None
