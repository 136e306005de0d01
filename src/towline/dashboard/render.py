"""Pages from templates: everything is escaped, nothing comes from elsewhere, no script inline."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from towline.forges.registry import title_of
from towline.http.models import moment
from towline.pulls.lifecycle import STATES, WAITING_FOR

HOME: Final = "/ui"
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
GUARDS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_MEDIA: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_MOST_STATES_NAMED: Final = 4
_A_YEAR: Final = "public, max-age=31536000, immutable"
_SECONDS_MATTER_BELOW: Final = 600
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def rendered(template: str, status: int = 200, **values: Any) -> Response:
    text = _environment().get_template(template).render(values)
    headers = {**GUARDS, "cache-control": "no-store"}
    return HTMLResponse(text, status_code=status, headers=headers)


def static_file(name: str) -> Response | None:
    """One of our own files; its address changes with its content, so it may be kept."""
    content = _static().get(name)
    if content is None:
        return None
    media = _MEDIA[name.rpartition(".")[2]]
    headers = {**GUARDS, "cache-control": _A_YEAR, "content-type": media}
    return Response(content, headers=headers)


@cache
def _static() -> Mapping[str, bytes]:
    folder = files("towline.dashboard") / "static"
    return {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in _MEDIA
    }


def _asset(name: str) -> str:
    return f"{HOME}/static/{name}?v={hashlib.sha256(_static()[name]).hexdigest()[:12]}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("towline.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"home": HOME, "asset": _asset, "states": STATES}
    environment.filters |= {
        "duration": duration,
        "utc": utc,
        "iso": iso,
        "words": words,
        "web": web_address,
        "query": query,
        "part": part,
        "pull_path": pull_path,
        "forge": title_of,
        "waiting": lambda state: WAITING_FOR[state],
        "tick": tick,
        "sentence": sentence,
        "not_in": not_in,
        "prefixed": lambda text, before: f"{before}{text}",
        "zip_same": lambda values: [(value, value) for value in values],
        "state_options": lambda values: [(value, words(value)) for value in values],
        "stage_pair": lambda stage: (stage.stage, stage.outcome),
    }
    return environment


def duration(seconds: float) -> str:
    """In its two largest units: `3 d 4 h`, `12 min`, `4 min 20 s`."""
    left = max(0, int(seconds))
    if left >= _SECONDS_MATTER_BELOW:
        left -= left % 60
    said: list[str] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            said.append(f"{count} {unit}")
        elif said:
            break
    return " ".join(said[:2]) or "0 s"


def utc(us: int) -> str:
    return f"{moment(us):%Y-%m-%d %H:%M:%S}"


def iso(us: int) -> str:
    return moment(us).isoformat().replace("+00:00", "Z")


def tick(us: int, daily: bool) -> str:
    """A moment as an axis has room for it."""
    return f"{moment(us):%d %b}" if daily else f"{moment(us):%H:%M}"


def sentence(text: object) -> str:
    said = str(text)
    return said[:1].upper() + said[1:]


def not_in(refusal: str, state: str) -> str:
    """The reason without what the page says anyway."""
    allowed = refusal.partition("; it is for ")[2].split(", ")
    if len(allowed) > _MOST_STATES_NAMED:
        return f"Not while in {words(state)}."
    return f"Only in: {', '.join(words(one) for one in allowed)}."


def words(name: str) -> str:
    """`CHECKS_FAILED` as `Checks failed`."""
    return name.replace("_", " ").capitalize()


def web_address(text: object) -> str:
    """The text if a link may go there; what is no web address leads nowhere."""
    address = str(text or "")
    return address if address.lower().startswith(("https://", "http://")) else ""


def query(values: Mapping[str, object]) -> str:
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else "?"


def part(text: str) -> str:
    """As a part of a path."""
    return quote(text, safe="")


def pull_path(ref: Any) -> str:
    return f"{HOME}/pr/{quote(ref.repo, safe='/')}/{ref.number}"
