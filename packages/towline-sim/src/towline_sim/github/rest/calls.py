"""What an operation of the REST API is: a call comes in, an answer goes out, or a problem.

Operations are plain functions over the world. They are found by method and path, and know nothing
of HTTP beyond what `Call` holds. A parameter of a path is one segment, or with a star (`{ref*}`)
as many as fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote, urlencode

from towline_sim.github.auth import Caller, Doorkeeper
from towline_sim.github.entities import Repo, Role
from towline_sim.github.limits import Meter
from towline_sim.github.problems import invalid, not_found
from towline_sim.github.shapes import Shapes
from towline_sim.github.webhooks import Webhooks
from towline_sim.github.world import World

_PARAMETER: Final = re.compile(r"\{(\w+)(\*?)\}")
_PER_PAGE: Final = 30
_MOST_PER_PAGE: Final = 100


class Answer(NamedTuple):
    """`value` is sent as JSON, unless it is bytes, which go out as plain text."""

    value: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request to the API, with everything an operation may want to know of it."""

    world: World
    method: str
    path: str
    root: str
    """Where the API is served, without a slash at the end."""
    caller: Caller
    params: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    accept: str = ""
    show: Shapes
    webhooks: Webhooks
    door: Doorkeeper
    meter: Meter

    @property
    def by(self) -> str:
        return self.caller.login

    @property
    def repo_name(self) -> str:
        return f"{self.params['owner']}/{self.params['repo']}"

    @property
    def repo(self) -> Repo:
        return self.world.repo(self.repo_name)

    def number(self, name: str) -> int:
        """A parameter of the path that is a number; anything else names nothing."""
        try:
            return int(self.params[name])
        except ValueError:
            not_found()

    def given(self, name: str, kind: type | tuple[type, ...] = str) -> Any:
        """A field of the body that must be there."""
        value = self.field(name, kind)
        if value is None:
            invalid(name, "missing_field", f'Invalid request.\n\n"{name}" wasn\'t supplied.')
        return value

    def field(self, name: str, kind: type | tuple[type, ...] = str, default: Any = None) -> Any:
        """A field of the body, or the default if it is absent or null."""
        value = self.body.get(name) if isinstance(self.body, dict) else None
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            invalid(name, "invalid", f'Invalid request.\n\n"{name}" is of the wrong type.')
        return value


Operation: TypeAlias = Callable[[Call], Answer]


class Route(NamedTuple):
    """`role` is the least that a person must have in the repository; without one, by method."""

    method: str
    path: str
    operation: Operation
    role: Role | None = None

    def needs(self) -> Role:
        return self.role or ("read" if self.method == "GET" else "write")


class Match(NamedTuple):
    route: Route
    params: Mapping[str, str]


class Routes:
    """Those that come first are tried first."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._patterns = [(route, _pattern(route.path)) for route in self.routes]

    def find(self, method: str, raw_path: str) -> Match | None:
        wanted = "GET" if method == "HEAD" else method
        for route, pattern in self._patterns:
            if route.method == wanted and (found := pattern.fullmatch(raw_path)):
                params = {name: unquote(value) for name, value in found.groupdict().items()}
                return Match(route, params)
        return None


def _pattern(path: str) -> re.Pattern[str]:
    def group(found: re.Match[str]) -> str:
        name, star = found.groups()
        return rf"(?P<{name}>.+)" if star else rf"(?P<{name}>[^/]+)"

    return re.compile(_PARAMETER.sub(group, path))


class Page(NamedTuple):
    items: Sequence[Any]
    headers: Mapping[str, str]


def page_of(call: Call, items: Sequence[Any]) -> Page:
    """The page that was asked for, and where its neighbours are."""
    size = min(_count(call, "per_page", _PER_PAGE), _MOST_PER_PAGE)
    number = _count(call, "page", 1)
    last = max(1, -(-len(items) // size))
    links = list(_links(number, last))
    link = ", ".join(f'<{_url(call, page)}>; rel="{rel}"' for rel, page in links)
    chosen = items[(number - 1) * size : number * size]
    return Page(chosen, {"link": link} if link else {})


def _count(call: Call, name: str, default: int) -> int:
    text = call.query.get(name, "")
    return max(1, int(text)) if text.isdecimal() and len(text) < 10 else default


def _links(number: int, last: int) -> Iterator[tuple[str, int]]:
    if number > 1:
        yield "prev", min(number - 1, last)
    if number < last:
        yield "next", number + 1
        yield "last", last
    if number > 1:
        yield "first", 1


def _url(call: Call, page: int) -> str:
    return with_query(call, page=str(page))


def with_query(call: Call, **changes: str) -> str:
    """The call's own URL with parts of its query replaced."""
    return f"{call.root}{quote(call.path)}?{urlencode({**call.query, **changes})}"


def listed(
    call: Call, items: Sequence[Any], render: Callable[[Any], Any], under: str | None = None
) -> Answer:
    """A page of a list, as it is or below a name beside the total count."""
    page = page_of(call, items)
    shown = [render(item) for item in page.items]
    value = shown if under is None else {"total_count": len(items), under: shown}
    return Answer(value, headers=page.headers)
