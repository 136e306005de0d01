"""Pull requests under tow, as the control plane's OpenAPI shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from towline.http.models import MOST_OF_A_PAGE, moment
from towline.pulls.lifecycle import TERMINAL, WAITING_FOR, State
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import RepoPolicy
from towline.pulls.staleness import is_stale
from towline.slash_commands import COMMANDS

LONGEST_NAME: Final = 300
LARGEST_NUMBER: Final = 2**53 - 1
MOST_OF_A_BATCH: Final = 500
STUCK: Final = "NEEDS_INTERVENTION"
_REF: Final = re.compile(r"(?P<repo>[^\s#]{1,300})#(?P<number>[1-9][0-9]{0,15})")


def _storable(text: str) -> str:
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it has a NUL or half a character in it")
    return text


def _storable_or_none(text: str | None) -> str | None:
    return None if text is None else _storable(text)


Text = Annotated[
    str, StringConstraints(min_length=1, max_length=LONGEST_NAME, pattern=r"^[^\x00]+$")
]
_Storable = Annotated[Text, AfterValidator(_storable)]
Owner = Annotated[_Storable, Path(description="Of the repository; a GitLab group may be nested.")]
Name = Annotated[_Storable, Path(description="Of the repository.")]
Repo = Annotated[_Storable, Path(description="OWNER/NAME, or a bare name that is unique.")]
Number = Annotated[int, Path(ge=1, le=LARGEST_NUMBER)]
PullLimit = Annotated[int, Query(ge=1, le=MOST_OF_A_PAGE, description="How many at most.")]
_NEXT: Final = Query(description="`next` of the page before; without it, the first.")
_Place = Annotated[
    str, StringConstraints(max_length=LONGEST_NAME, pattern=r"^[^\x00]+#[0-9]{1,18}$")
]
_Age = Annotated[
    str, StringConstraints(max_length=LONGEST_NAME, pattern=r"^[0-9]{1,18}-[^\x00]+#[0-9]{1,18}$")
]
Cursor = Annotated[_Place | None, AfterValidator(_storable_or_none), _NEXT]
StaleCursor = Annotated[_Age | None, AfterValidator(_storable_or_none), _NEXT]
RepoFilter = Annotated[_Storable | None, Query(description="OWNER/NAME, or a unique bare name.")]
PullStateFilter = Annotated[State | None, Query(description="Only those in this state.")]
StaleFilter = Annotated[bool | None, Query(description="Only those that are stale, or are not.")]
RuleFilter = Annotated[
    Text | None, Query(description="Only those whose stored diagnosis is by this rule.")
]
SearchFilter = Annotated[
    _Storable | None, Query(description="In the title, the branch or the repository's name.")
]
DryRun = Annotated[bool, Query(description="Decide and report, and do nothing.")]


_Command = Annotated[Text, Field(examples=["/rebuild"], json_schema_extra={"enum": [*COMMANDS]})]
_EITHER: Final[JsonDict] = {
    "if": {"required": ["filter"], "properties": {"filter": {"type": "object"}}},
    "then": {"properties": {"prs": {"type": "null"}}},
    "else": {"required": ["prs"], "properties": {"prs": {"type": "array"}}},
}
"""Either of two members: `oneOf` would hide the others from generators of clients."""


def _one_condition(schema: JsonDict) -> None:
    names = [*PullFilter.model_fields]
    given: JsonDict = {"not": {"type": "null"}}
    some: JsonDict = {
        "anyOf": [{"required": [name], "properties": {name: given}} for name in names]
    }
    schema["allOf"] = [some]  # `anyOf` alone would make many types of one


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CommandBody(_Body):
    command: _Command


class PullFilter(_Body):
    """All that is given must hold; at least one is given."""

    model_config = ConfigDict(json_schema_extra=_one_condition)

    repo: _Storable | None = None
    state: State | None = None
    stale: bool | None = None
    rule: Text | None = None
    search: _Storable | None = None


class BatchBody(_Body):
    """Either `prs` or `filter`; at most 500 pull requests."""

    model_config = ConfigDict(json_schema_extra=_EITHER)

    command: _Command
    prs: list[_Storable] | None = Field(
        default=None,
        max_length=MOST_OF_A_BATCH,
        examples=[["octo-org/app#7"]],
        description="Each OWNER/NAME#NUMBER.",
    )
    filter: PullFilter | None = Field(
        default=None, description="Like that of the list: repo, state, stale, rule, search."
    )


class ResetBody(_Body):
    name: _Storable | None = Field(default=None, description="Which breaker; without it, all.")


class CommandAccepted(BaseModel):
    """The command is queued; its job tells how it went."""

    status: Literal["accepted"] = "accepted"
    job_id: str
    command: str
    repo: str
    number: int


class BatchItem(BaseModel):
    """What came of the command for one pull request; `code` and `detail` where it was refused."""

    pr: str = Field(examples=["octo-org/app#7"])
    status: Literal["accepted", "refused"]
    job_id: str | None = None
    code: str | None = None
    detail: str | None = None


class BatchAnswer(BaseModel):
    command: str
    accepted: int
    refused: int
    results: list[BatchItem]


class EventOut(BaseModel):
    event_type: str
    at: datetime
    source: str
    payload: Mapping[str, Any]


class Links(BaseModel):
    """Where to go on."""

    status: str
    command: str
    pull_request: str | None


class PullOut(BaseModel):
    """A pull request as it stands."""

    repo: str
    number: int
    title: str
    author: str | None
    url: str | None
    branch: str | None
    base: str | None
    head: str | None
    vulnerability_id: str | None
    state: State
    substatus: str | None
    waiting_for: str
    stale: bool
    diagnosis: Mapping[str, Any] | None = Field(
        description="Why it stands there and what is next: rule, reason, evidence, next_action, …"
    )
    created_at: datetime
    last_event_timestamp: datetime = Field(
        description="When an event last changed its state, or a remedy restarted its clock."
    )
    last_remediation_at: datetime | None
    remediation_action: str | None
    replaces: int | None = Field(description="The pull request that was closed for this one.")
    replaced_by: int | None
    links: Links


class PullPage(BaseModel):
    """By repository and number. `next` goes into `cursor` to get the page after; null on the last.

    Where filters leave little, a page may be short although another one follows.
    """

    items: list[PullOut]
    next: str | None
    counts: Mapping[State, int] = Field(description="All that are towed, by state.")


class StalePage(BaseModel):
    """The longest stale first."""

    items: list[PullOut]
    next: str | None
    counts: Mapping[State, int] = Field(description="All that are stale and match, by state.")


Stored: TypeAlias = tuple[str, int]


def parsed_ref(text: str) -> Stored | None:
    """The repository and the number in `OWNER/NAME#N`."""
    found = _REF.fullmatch(text)
    return (found["repo"], int(found["number"])) if found else None


def pull_out(record: PullRecord, policy: RepoPolicy, now_us: int) -> PullOut:
    return PullOut(**fields_of(record, policy, now_us), diagnosis=current_diagnosis(record))


class Story(NamedTuple):
    """What is read besides the record to tell of a pull request."""

    events: Sequence[PullEvent]
    more_events: bool
    reopened: int
    """How often one for the same vulnerability was closed for another."""


def event_out(event: PullEvent) -> EventOut:
    return EventOut(
        event_type=event.event_type,
        at=moment(event.at_us),
        source=event.source,
        payload=event.payload,
    )


def current_diagnosis(record: PullRecord) -> Mapping[str, Any] | None:
    """The reconciler's last one, unless its state is another by now, be it by the remedy itself.

    A person keeps the last.
    """
    stored = record.diagnosis
    if stored is None or record.state in TERMINAL:
        return None
    if record.state == STUCK:
        return stored if stored.get("next_action") == STUCK else None
    if stored.get("state", record.state) != record.state:
        return None
    at = stored.get("at")
    return stored if isinstance(at, int | float) and at >= record.since_us / 1e6 else None


def fields_of(record: PullRecord, policy: RepoPolicy, now_us: int) -> dict[str, Any]:
    """What the page of the fleet and the page of one pull request both show."""
    remedied = record.last_remediation_us
    ref = record.ref
    path = f"/api/pr/{ref.repo}/{ref.number}"
    return {
        "repo": ref.repo,
        "number": ref.number,
        "title": record.title,
        "author": record.author,
        "url": record.url,
        "branch": record.head_ref,
        "base": record.base_ref,
        "head": record.head_sha,
        "vulnerability_id": record.vulnerability_id,
        "state": record.state,
        "substatus": record.substatus,
        "waiting_for": WAITING_FOR[record.state],
        "stale": is_stale(record.state, record.since_us / 1e6, now_us / 1e6, policy.thresholds),
        "created_at": moment(record.created_us),
        "last_event_timestamp": moment(record.since_us),
        "last_remediation_at": None if remedied is None else moment(remedied),
        "remediation_action": record.remediation_action,
        "replaces": record.replaces,
        "replaced_by": record.replaced_by,
        "links": Links(status=f"{path}/status", command=f"{path}/command", pull_request=record.url),
    }
