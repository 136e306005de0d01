"""Pull requests as rows. What has a shape of its own is JSON, and is read whatever its age."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import orjson

from towline.core.budgets import STRATEGIES
from towline.core.facts import CheckFact, Facts, ReviewFact, Said
from towline.core.snapshot import PullRef
from towline.ports.pulls import Intent, PullEvent, PullRecord
from towline.store.sql import Row

COLUMNS = {
    "repo": "text", "number": "bigint", "forge": "text", "url": "text", "title": "text",
    "author": "text", "head_ref": "text", "base_ref": "text", "head_sha": "text",
    "vulnerability_id": "text", "state": "text", "substatus": "text", "since_us": "bigint",
    "created_us": "bigint", "updated_us": "bigint", "counts": "text", "lifetime": "text",
    "path": "text", "facts": "text", "intent": "text", "verify_by_us": "bigint",
    "last_remediation_us": "bigint", "remediation_action": "text", "diagnosis": "text",
    "replaces": "bigint", "replaced_by": "bigint", "expires_us": "bigint", "version": "bigint",
    "last_event": "bigint",
}  # fmt: skip
"""Of `towline_prs`, in the order of a row."""

_NAMES: dict[type[Any], frozenset[str]] = {
    kind: frozenset(one.name for one in fields(kind))
    for kind in (Facts, CheckFact, ReviewFact, Said)
}
T = TypeVar("T")


def row_of(record: PullRecord, version: int, last_event: int) -> Row:
    intent = record.intent
    return (
        record.ref.repo,
        record.ref.number,
        record.ref.forge,
        *record[1:8],
        *record[8:13],
        _text(record.counts),
        _text(record.lifetime),
        _text(record.path),
        _text(record.facts),
        None if intent is None else _text(intent._asdict()),
        None if intent is None else intent.verify_by_us,
        record.last_remediation_us,
        record.remediation_action,
        None if record.diagnosis is None else _text(record.diagnosis),
        record.replaces,
        record.replaced_by,
        record.expires_us,
        version,
        last_event,
    )


def record_of(row: Row) -> PullRecord:
    """Of a row with the columns in their order."""
    found = dict(zip(COLUMNS, row, strict=False))
    ref = PullRef(found.pop("forge"), found.pop("repo"), found.pop("number"))
    del found["verify_by_us"], found["last_event"]
    return PullRecord(
        **found
        | {
            "ref": ref,
            "counts": _counts(found["counts"]),
            "lifetime": _counts(found["lifetime"]),
            "path": tuple(orjson.loads(found["path"])),
            "facts": _facts(orjson.loads(found["facts"])),
            "intent": _intent(found["intent"]),
            "diagnosis": found["diagnosis"] and orjson.loads(found["diagnosis"]),
        }
    )


def event_row(record: PullRecord, event: PullEvent, number: int) -> Row:
    payload = _text(event.payload)
    ref = record.ref
    return (
        *(ref.repo, ref.number, number, event.key),
        *(event.event_type, event.source, event.at_us, payload),
    )


def event_of(row: Row) -> PullEvent:
    """Of id, key, event_type, source, at_us and payload."""
    number, key, event_type, source, at_us, payload = row
    return PullEvent(event_type, source, at_us, orjson.loads(payload), key, number)


def _text(value: object) -> str:
    """Mappings that are no dicts, sets and the like are written as what they hold."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)


def _counts(text: str) -> dict[Any, int]:
    stored = orjson.loads(text)
    return {strategy: stored.get(strategy, 0) for strategy in STRATEGIES}


def _intent(text: str | None) -> Intent | None:
    if text is None:
        return None
    stored = orjson.loads(text)
    return Intent(**{name: stored[name] for name in Intent._fields if name in stored})


def _facts(stored: dict[str, Any]) -> Facts:
    known = _only_known(Facts, stored)
    for name in ("checks", "suites", "policy_checks"):
        known[name] = _each(CheckFact, known.get(name))
    known["reviews"] = _each(ReviewFact, known.get("reviews"))
    known["said"] = _each(Said, known.get("said"))
    for name in ("approved_by", "labels", "former_heads"):
        known[name] = tuple(known.get(name) or ())
    return Facts(**known)


def _each(kind: type[T], stored: Mapping[str, dict[str, Any]] | None) -> dict[str, T]:
    return {name: kind(**_only_known(kind, value)) for name, value in (stored or {}).items()}


def _only_known(kind: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    return {name: value for name, value in stored.items() if name in names}
