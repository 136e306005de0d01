"""The diagnostic archive: what helps another person to see the trouble, and no secret.

Every text goes through the redactor, member by member, before it is packed.
"""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import httpx2
import orjson

from towline.config import Settings
from towline.doctor.checks import Report
from towline.doctor.database import reading_of, version_in
from towline.doctor.findings import Finding, one_line
from towline.doctor.reading import Reading, is_postgres
from towline.doctor.redaction import shown_settings
from towline.doctor.webhooks import address_of
from towline_once.errors import Rejected, TowlineError

_LAST_JOBS: Final = 50
_MOST_METRICS: Final = 2_000_000
_BY_STATE: Final = ("towline_jobs", "towline_prs", "towline_runs")
_TROUBLED: Final = f"""
SELECT id, kind, state, attempts, max_attempts, updated_us, reason FROM towline_jobs
WHERE reason IS NOT NULL OR state = 'dead' ORDER BY updated_us DESC LIMIT {_LAST_JOBS}
"""
_BREAKERS: Final = "SELECT name, body FROM once_documents WHERE name LIKE 'breaker%'"


def kind_of(file: Path) -> str:
    """Checked before anything is looked at, so that a wrong name costs no time."""
    for ending in (".tar.gz", ".tgz", ".zip"):
        if file.name.endswith(ending):
            kind = "zip" if ending == ".zip" else "tar"
            break
    else:
        raise Rejected(f"--bundle names a .tar.gz or a .zip file, not {file.name[:100]!a}")
    if not file.absolute().parent.is_dir():
        raise Rejected(f"--bundle: the folder {file.absolute().parent} does not exist")
    return kind


async def write_bundle(report: Report, file: Path, seconds: float) -> list[str]:
    """The names of its members."""
    kind = kind_of(file)
    texts = {
        "doctor.json": _json(report, report.as_data()),
        "doctor.txt": "\n".join(map(line_of, report.findings)) + "\n",
        "versions.json": _json(report, versions()),
    }
    if report.settings is not None:
        texts["settings.json"] = _json(report, shown_settings(report.settings))
        texts["database.json"] = _json(report, await _about_database(report.settings, seconds))
        texts["metrics.txt"] = await _metrics(report.settings, seconds)
    packed = {name: report.redactor.text(text).encode() for name, text in texts.items()}
    try:
        _write(file, kind, packed)
    except OSError as error:
        raise Rejected(f"cannot write {file}: {error.strerror or error}") from None
    return sorted(packed)


def line_of(finding: Finding) -> str:
    fix = f"  Fix: {finding.fix}" if finding.fix else ""
    return f"{finding.verdict:8} {finding.check}: {finding.found}{fix}"


def versions() -> dict[str, Any]:
    packages = {str(one.name): str(one.version) for one in distributions() if one.name}
    return {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "towline": packages.get("towline"),
        "python": sys.version,
        "os": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


def _json(report: Report, value: Any) -> str:
    """Redacted by value first: in JSON a secret may be written with escapes."""
    return orjson.dumps(report.redactor.data(value), option=orjson.OPT_INDENT_2).decode() + "\n"


# ------------------------------------------------------------------ what the stores tell


async def _about_database(settings: Settings, seconds: float) -> dict[str, Any]:
    """Each part by itself: one that fails does not take the others with it."""
    told: dict[str, Any] = {}
    try:
        async with reading_of(settings, seconds) as reading:
            if reading is None:
                return {"note": "there is no database yet"}
            parts: Mapping[str, Callable[[Reading], Awaitable[Any]]] = {
                "version": version_in,
                "rows": _counts,
                "bytes": _sizes_of_postgres if is_postgres(settings.database_url) else _file_size,
                "states": _states,
                "troubled_jobs": _troubled_jobs,
                "breakers": _breakers,
            }
            for name, ask in parts.items():
                told[name] = await _told(ask, reading)
    except TowlineError as error:
        told["trouble"] = one_line(str(error))
    return told


async def _told(ask: Callable[[Reading], Awaitable[Any]], reading: Reading) -> Any:
    try:
        return await ask(reading)
    except Exception as error:  # an older table, a missing right: the rest is still worth having
        return {"trouble": one_line(f"{type(error).__name__}: {error}")}


async def _counts(reading: Reading) -> dict[str, int]:
    found = {}
    for table in await reading.tables():
        found[table] = int((await reading.rows(f'SELECT count(*) FROM "{table}"'))[0][0])
    return found


async def _file_size(reading: Reading) -> dict[str, int]:
    pages = int((await reading.rows("PRAGMA page_count"))[0][0])
    return {"file": pages * int((await reading.rows("PRAGMA page_size"))[0][0])}


async def _sizes_of_postgres(reading: Reading) -> dict[str, int]:
    found = {}
    for table in await reading.tables():
        question = f"SELECT pg_total_relation_size('{table}')"
        found[table] = int((await reading.rows(question))[0][0])
    return found


async def _states(reading: Reading) -> dict[str, dict[str, int]]:
    there = set(await reading.tables())
    found: dict[str, dict[str, int]] = {}
    for table in _BY_STATE:
        if table in there:
            question = f"SELECT state, count(*) FROM {table} GROUP BY state"
            rows = await reading.rows(question)
            found[table] = {str(row[0]): int(row[1]) for row in rows}
    return found


async def _troubled_jobs(reading: Reading) -> list[dict[str, Any]]:
    """Why they failed; not what they were about, and not what they said at length."""
    names = ("id", "kind", "state", "attempts", "max_attempts", "updated_us", "reason")
    return [dict(zip(names, row, strict=True)) for row in await reading.rows(_TROUBLED)]


async def _breakers(reading: Reading) -> dict[str, Any]:
    rows = await reading.rows(_BREAKERS)
    return {str(row[0]): orjson.loads(row[1]) for row in rows}


async def _metrics(settings: Settings, seconds: float) -> str:
    """From the service on this machine, if it runs; it needs no key from here."""
    serve = settings.serve
    root = address_of(settings)
    if serve.control_port is not None:
        root = f"http://{serve.control_host}:{serve.control_port}"
    try:
        async with httpx2.AsyncClient(timeout=seconds) as client:
            answer = await client.get(f"{root}/metrics")
    except httpx2.HTTPError as error:
        return f"# nothing answers at {root}: {type(error).__name__}\n"
    if answer.status_code != 200:
        return f"# {root}/metrics answered {answer.status_code}\n"
    return answer.text[:_MOST_METRICS]


# ------------------------------------------------------------------ packing


def _write(file: Path, kind: str, members: Mapping[str, bytes]) -> None:
    """For its owner alone, and whole or not at all."""
    beside = file.with_name(f".{file.name}.part")
    try:
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(opened, "wb") as out:
            (_write_zip if kind == "zip" else _write_tar)(out, members)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _write_zip(out: Any, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(f"towline-bundle/{name}", text)


def _write_tar(out: Any, members: Mapping[str, bytes]) -> None:
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(f"towline-bundle/{name}")
            member.size, member.mode = len(text), 0o600
            member.mtime = int(datetime.now(UTC).timestamp())
            archive.addfile(member, io.BytesIO(text))
