"""One HTTP exchange under an idempotency key: what is read of it, kept of it and replayed."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

from towline_once.asgi.messages import Headers, Message, Problem, Receive, Scope, Send, messages
from towline_once.canonical_json import canonical, opaque_hash, parse_json
from towline_once.errors import Rejected
from towline_once.idempotency.types import Claim

LONGEST_KEY: Final = 255
LONGEST_TENANT: Final = 512
LONGEST_RETRY_AFTER: Final = 5

KEY_HEADERS: Final = ("Idempotency-Key", "X-Idempotency-Key", "X-Request-ID")
"""Of our own service; the first one that is there counts."""

_KEY: Final = re.compile(f"[ -~]{{1,{LONGEST_KEY}}}")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_NAMES: Final = ("identity", "id", "pk", "sub", "user_id", "username", "email", "display_name")
"""Where the name of a user is looked for; the unique ones come first."""
_NO_TENANT: Final = (
    "this request has an idempotency key, and the service cannot tell whose key it is: pass "
    "tenant=… to IdempotencyMiddleware, a function from the ASGI scope to the caller's name, or "
    "put an authentication middleware in front of it that sets scope['user']"
)
_JSON: Final = re.compile(rb"application/(?:[^;\s]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_MULTIPART: Final = re.compile(
    rb'multipart/[^;\s]+\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))',
    re.IGNORECASE | re.DOTALL,
)
_DIGITS_OF_A_LENGTH: Final = 15
_REPLAYED: Final = (b"idempotent-replayed", b"true")


# ---------------------------------------------------------------------- the request


class Request(NamedTuple):
    tenant: str
    request_id: str
    payload: dict[str, Any]
    body: bytes


def by_user(scope: Scope) -> str:
    """The default tenant: the authenticated user that a middleware in front left in the scope.

    Credentials and cookies are no part of it: they are renewed between a request and its retry,
    which would then be another caller's and run again.
    """
    found = _name_of(scope.get("user"))
    if found is None:
        raise Problem(400, "tenant_missing", _NO_TENANT)
    return f"user:{found}"


def _name_of(user: Any) -> str | None:
    """What Starlette's, Litestar's and Django's middlewares put there, or a plain name or claims.

    A user that says it is not authenticated has no name here.
    """
    if isinstance(user, (str, int, UUID)) and not isinstance(user, bool):
        return str(user).strip() or None
    if user is None or not _member(user, "is_authenticated", True):
        return None
    return next((name for member in _NAMES if (name := _name_of_member(user, member))), None)


def _name_of_member(user: Any, member: str) -> str | None:
    found = _member(user, member, None)
    return _name_of(found) if isinstance(found, (str, int, UUID)) else None


def _member(user: Any, name: str, missing: Any) -> Any:
    """Of a mapping or an object; Starlette's base class has members that are not implemented."""
    if isinstance(user, Mapping):
        return user.get(name, missing)
    try:
        found = getattr(user, name, missing)
    except NotImplementedError:
        return missing
    return found() if callable(found) else found


def key_of(scope: Scope, names: Iterable[bytes]) -> str | None:
    """The key in the first of these headers that is there; a bad value in any is refused."""
    found = None
    for name in names:
        texts = {_key_text(name, value) for header, value in scope["headers"] if header == name}
        if len(texts) > 1:
            raise _invalid_key(name, "was sent more than once, with different values")
        if texts and found is None:
            found = texts.pop()
    return found


def _key_text(name: bytes, value: bytes) -> str:
    """The key itself; a quoted string, as the IETF draft has it, means the text it quotes."""
    text = value.decode("latin-1").strip(" \t")
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        if quoted is None:
            raise _invalid_key(name, "starts with a quote but is not one quoted string")
        text = _ESCAPED.sub(r"\1", quoted[1])
    if not text.strip() or not _KEY.fullmatch(text):
        raise _invalid_key(name, "is empty, too long or not printable ASCII")
    return text


def _invalid_key(name: bytes, fault: str) -> Problem:
    allowed = f"one value of 1 to {LONGEST_KEY} printable ASCII characters, quoted or not"
    return Problem(400, "key_invalid", f"{name.decode('latin-1')} {fault}; send {allowed}")


def tenant_of(scope: Scope, name: Callable[[Scope], str]) -> str:
    """The tenant that the caller's function names, if a store can hold it."""
    try:
        tenant = name(scope)
    except Rejected as error:
        raise Problem(400, "tenant_invalid", str(error)) from error
    usable = isinstance(tenant, str) and tenant.isprintable()
    if usable and 0 < len(tenant.encode()) <= LONGEST_TENANT:
        return tenant
    raise Problem(400, "tenant_invalid", "the request does not name a usable tenant")


def endpoint_of(scope: Scope) -> str:
    """Method and path, without a space that could be taken for the one before the key."""
    return f"{scope['method']} {quote(path_of(scope), errors='surrogatepass')}"


def path_of(scope: Scope) -> str:
    """The whole path; some servers leave out the part under which the app is mounted."""
    root: str = scope.get("root_path", "")
    path: str = scope["path"]
    return path if path.startswith(root) else root + path


def payload_of(scope: Scope, body: bytes) -> dict[str, Any]:
    """What must be the same when a key is used again.

    JSON counts by value, a multipart body by its parts, whatever separates them, the rest by byte.
    """
    query = scope.get("query_string", b"").decode("latin-1")
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    if _JSON.match(kind):
        try:
            payload = {"query": query, "body": parse_json(body)}
            canonical(payload)
        except Rejected:
            pass  # whether this is acceptable JSON is for the app to say
        else:
            return payload
    return {"query": query, "bytes": opaque_hash(_without_boundary(kind, body))}


def _without_boundary(kind: bytes, body: bytes) -> bytes:
    """Clients choose another boundary each time, so the hashes of the parts stand for the body."""
    found = _MULTIPART.match(kind)
    if found is None:
        return body
    boundary = b"\r\n--" + (found[1] or found[2])
    parts = (b"\r\n" + body).split(boundary)
    return b"multipart " + "\n".join(opaque_hash(part) for part in parts).encode()


# ---------------------------------------------------------------------- the answer


class Answer:
    """What the app says: passed on to the client, and kept as far as it can be replayed."""

    def __init__(self, request: Request, receive: Receive, send: Send, limit: int) -> None:
        self.status = 0
        self.complete = False
        self.muted = False
        self.client_left = False
        self.send_error: Exception | None = None
        self.over = asyncio.Event()  # complete, or the app ended without that
        self.recorded = asyncio.Event()
        self._may_hear_disconnect = asyncio.Event()
        self._unread: bytes | None = request.body
        self._receive = receive
        self._send = send
        self._limit = limit
        self._headers: Headers = []
        self._chunks: list[bytes] = []
        self._size = 0
        self._announced: int | None = None
        self._unkept = ""

    async def receive(self) -> Message:
        """For the app: the request, and no disconnect before it has answered.

        An event stream is the exception, as it may have no end: a client that leaves is its end.
        """
        if self._unread is not None:
            body, self._unread = self._unread, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._may_hear_disconnect.wait()
        while not self.complete:
            if (await self._receive())["type"] == "http.disconnect":
                await self._end()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """For the app; its last message is held until the record is written."""
        if self.muted:
            return
        if message["type"] == "http.response.start":
            self._open(message)
        elif not self.complete and self._add(message):
            await self._end()
        await self.deliver(message)
        if self.client_left and self._unkept == "event_stream" and not self.complete:
            await self._end()
            raise OSError("the client left")

    async def deliver(self, message: Message) -> None:
        """To the client, if it is still there."""
        if self.client_left:
            return
        try:
            await self._send(message)
        except Exception as error:
            self.client_left = True
            self.send_error = error

    def _open(self, message: Message) -> None:
        self.status = message["status"]
        self._headers = [(bytes(n).lower(), bytes(v)) for n, v in message.get("headers", ())]
        length = self._header(b"content-length") or ""
        if length.isdecimal() and len(length) <= _DIGITS_OF_A_LENGTH:
            self._announced = int(length)
        if (self._header(b"content-type") or "").lower().startswith("text/event-stream"):
            self._unkept = "event_stream"
            self._may_hear_disconnect.set()

    def _add(self, message: Message) -> bool:
        """Whether this ends the answer: by its own word, or by the length that was announced."""
        if message["type"] == "http.response.body":
            chunk = bytes(message.get("body", b""))
            self._size += len(chunk)
            self._chunks.append(chunk)
            if self._size > self._limit:
                self._unkept = self._unkept or "too_large"
        elif message["type"] in ("http.response.pathsend", "http.response.zerocopysend"):
            self._unkept = self._unkept or "streamed"
        else:
            return False
        if self._unkept:
            self._chunks.clear()
        return not message.get("more_body", False) or self._size == self._announced

    async def _end(self) -> None:
        self.complete = True
        self.over.set()
        await self.recorded.wait()
        self._may_hear_disconnect.set()

    def _header(self, name: bytes) -> str | None:
        return next((v.decode("latin-1") for n, v in self._headers if n == name), None)

    def kept(self, names: frozenset[bytes]) -> dict[str, Any]:
        """What the store is to hold, with the headers of these names."""
        if self._unkept:
            names = frozenset({b"location"})
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in self._headers]
        headers = [pair for pair in headers if pair[0].encode("latin-1") in names]
        kept = {"status": self.status, "headers": headers}
        if self._unkept:
            return kept | {"unkept": self._unkept, "size": self._size}
        body = b"".join(self._chunks)
        try:
            return kept | {"text": body.decode()}
        except UnicodeDecodeError:
            return kept | {"base64": base64.b64encode(body).decode()}


# ---------------------------------------------------------------------- the answer to a duplicate


def reply(claim: Claim, collision_status: int) -> list[Message]:
    """What a request gets whose key is not free."""
    if claim.status == "collision":
        return _collision(claim.pointers, collision_status).messages()
    if claim.status == "processing":
        problem = Problem(409, "in_flight", "a request with this key is still being worked on")
        return problem.retry_after(min(claim.retry_after, LONGEST_RETRY_AFTER)).messages()
    if refusal := _refusal(claim):
        return refusal.messages()
    kept = claim.response if isinstance(claim.response, dict) else _without_answer(claim)
    return _replay(kept)


def _collision(found: Sequence[str], status: int) -> Problem:
    """The pointers are into the body; an empty one stands for the whole of it."""
    in_body = (pointer for pointer in found if pointer != "/query")
    pointers = sorted({"" if p == "/bytes" else p.removeprefix("/body") for p in in_body})
    places = [pointer or "the whole body" for pointer in pointers]
    if "/query" in found:
        places.append("the query string")
    where = f"; they differ at {', '.join(places)}" if places else ""
    detail = f"this key was used before with another request{where}"
    return Problem(status, "key_collision", detail, pointers=pointers)


def _refusal(claim: Claim) -> Problem | None:
    if claim.parked:
        detail = "the request stopped half-way and its outcome is unknown; it awaits a decision"
        return Problem(409, "indeterminate", detail)
    if claim.exhausted:
        detail = f"the request failed {claim.attempts} times and is not run again under this key"
        return Problem(409, "exhausted", detail, attempts=claim.attempts)
    if claim.definitive:
        return Problem(409, "failed", "the request failed and is not run again under this key")
    return None


def _without_answer(claim: Claim) -> dict[str, Any]:
    """For a store with less room than ours: of the answer, only the status was recorded."""
    status = int(claim.run_id) if claim.run_id and claim.run_id.isdecimal() else 200
    return {"status": status, "headers": [], "unkept": "too_large", "size": None}


def _replay(kept: dict[str, Any]) -> list[Message]:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept["headers"]]
    headers.append(_REPLAYED)
    if "unkept" in kept:
        detail = "the request was carried out, but its answer was not kept and cannot be repeated"
        stone = {"reason": kept["unkept"], "size": kept["size"]}
        problem = Problem(kept["status"], "result_not_kept", detail, **stone)
        problem.headers += headers
        return problem.messages()
    body = kept["text"].encode() if "text" in kept else base64.b64decode(kept["base64"])
    return messages(kept["status"], headers, body)
