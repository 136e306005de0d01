"""Calls about one repository, with the credentials that open it: a token's, or an installation's.

An App signs in with its own key, asks which installation has the repository, and gets a token for
that, which is used until five minutes before its end. All repositories of an owner are opened by
one installation. What GitHub says is unchanged is taken from memory, and costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from towline.forges import payload
from towline.forges.client import REDIRECTS, Answer, ApiClient
from towline.forges.delivery_log import ForgeRefused, ForgeUnreadable
from towline.forges.github.client import bearer, links_of
from towline.forges.payload import Object
from towline_once.errors import MissingExtra, Rejected

# ------------------------------------------------------------------ the App's token
# How an App signs in: a short-lived RS256 token, made with the App's private key.

_LIFE_SECONDS = 540
_RENEW_SECONDS = 120
_CLOCK_ERROR_SECONDS = 60


class GitHubApp:
    """Signs once at the start, so that a key which is no use is noticed then."""

    def __init__(self, app_id: str, key_file: Path) -> None:
        try:
            import cryptography  # noqa: F401 - RS256 needs it, and PyJWT says so only when it signs
            import jwt
        except ImportError as missing:
            raise MissingExtra(
                "a GitHub App needs an extra: pip install 'towline[app]'"
            ) from missing
        self.app_id = app_id
        self._encode = jwt.encode
        self._key = _key_in(key_file)
        self._token = ""
        self._expires = 0.0
        try:
            self.token(0.0)
        except (ValueError, TypeError, jwt.PyJWTError):
            raise Rejected(f"{key_file} holds no RSA private key in PEM form") from None

    def token(self, now: float) -> str:
        """Valid at `now`, in seconds since 1970 by GitHub's clock."""
        if not self._expires - _LIFE_SECONDS <= now < self._expires - _RENEW_SECONDS:
            claims = {
                "iat": int(now) - _CLOCK_ERROR_SECONDS,
                "exp": int(now) + _LIFE_SECONDS,
                "iss": self.app_id,
            }
            self._token = self._encode(claims, self._key, algorithm="RS256")
            self._expires = now + _LIFE_SECONDS
        return self._token


def _key_in(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Rejected(f"cannot read the GitHub App's key {file}: {error.strerror}") from None


# ------------------------------------------------------------------ access

_RENEW_US: Final = 300 * 1_000_000
_PER_PAGE: Final = 100
_MOST_PAGES: Final = 50
_SHA: Final = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_REPO: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}/(?!\.{1,2}$)[A-Za-z0-9_.-]{1,100}")


class _Token(NamedTuple):
    authorization: str
    ends_us: int

    def __repr__(self) -> str:
        return "an installation's token"


class Access:
    """`login` is whose credentials they are, where GitHub cannot be asked."""

    def __init__(
        self,
        rest: ApiClient,
        *,
        token: str | None,
        app: GitHubApp | None,
        login: str | None = None,
    ) -> None:
        if (token is None) == (app is None):
            raise Rejected("GitHub needs either a token or an App's id and key")
        self.rest = rest
        self._token = None if token is None else bearer(token)
        self._app = app
        self._installations: dict[str, str] = {}
        self._tokens: dict[str, _Token] = {}
        self._login = login

    def account_of(self, repo: str) -> str:
        """Repositories of the same account can be asked about in one call."""
        owner = _checked(repo).partition("/")[0].lower()
        return "" if self._app is None else owner

    async def own_login(self) -> str:
        """Whose name our own comments and reviews carry."""
        if self._login is None:
            if self._app is None:
                call = self._getting("/user", "user", also=(403,))
                node = (await self._for_repo(None, call)).object()
                login = payload.text(node, "login")
            else:
                node = (await self._as_app(self._getting("/app", "App"))).object()
                slug = payload.text(node, "slug")
                login = f"{slug}[bot]" if slug else None
            if login is None:
                raise ForgeRefused(
                    "GitHub does not tell whose credentials these are: name the login"
                )
            self._login = login
        return self._login

    async def get(
        self,
        repo: str,
        path: str,
        about: str,
        *,
        query: Mapping[str, str] | None = None,
        also: Collection[int] = (),
    ) -> Answer:
        """Of a path below the repository; what has not changed is as it was."""
        path = f"/repos/{_checked(repo)}{path}"
        answer = await self._for_repo(
            repo, self._getting(path, about, query=query, also=(403, *also))
        )
        if answer.status == 403 and 403 not in also:
            raise ForgeRefused(f"GitHub does not open the {about} to us (403: {answer.says})")
        return answer

    async def one(self, repo: str, path: str, about: str) -> Object:
        return (await self.get(repo, path, about)).object()

    async def all_of(
        self,
        repo: str,
        path: str,
        about: str,
        *,
        query: Mapping[str, str] | None = None,
        within: str | None = None,
        first_page: int = 1,
    ) -> list[Object]:
        """Every page of a list, which may stand within an object under a name."""
        found: list[Object] = []
        for page in range(first_page, first_page + _MOST_PAGES):
            numbered = {**(query or {}), "per_page": str(_PER_PAGE), "page": str(page)}
            answer = await self.get(repo, path, about, query=numbered)
            listed = answer.json() if within is None else answer.object().get(within)
            if not isinstance(listed, list):
                raise ForgeUnreadable(f"GitHub's answer about {about} is not a list")
            found += [item for item in listed if isinstance(item, dict)]
            if "next" not in links_of(answer.headers):  # it is not followed
                return found
        raise ForgeUnreadable(f"GitHub's list about {about} has no end")

    async def write(
        self,
        repo: str,
        method: str,
        path: str,
        about: str,
        body: object = None,
        *,
        also: Collection[int] = (),
    ) -> Answer:
        whole = f"/repos/{_checked(repo)}{path}"

        return await self._for_repo(repo, self._asking(method, whole, about, body=body, also=also))

    async def ask(self, repo: str, body: object, about: str, also: Collection[int]) -> Answer:
        """A question in GraphQL, with the credentials for this repository."""

        call = self._asking(
            "POST", self._graphql_url(), about, body=body, also=also, kind="graphql"
        )
        return await self._for_repo(repo, call)

    async def find_log(
        self, repo: str, path: str, about: str, also: Collection[int]
    ) -> bytes | httpx2.URL | None:
        """The text, or its place on another host; None for a status of `also`."""
        answer = await self.rest.send(
            "GET",
            f"/repos/{_checked(repo)}{path}",
            about=about,
            headers={"authorization": await self.authorization(repo)},
            also=also,
            may_lead_away=True,
        )
        if answer.status in REDIRECTS:
            return self.rest.target(self.rest.root, answer.headers)
        return answer.body if answer.status == 200 else None

    async def authorization(self, repo: str) -> str:
        if self._token is not None:
            return self._token
        installation = await self._installation(repo)
        token = self._tokens.get(installation)
        if token is None or self.rest.now_us() > token.ends_us - _RENEW_US:
            token = self._tokens[installation] = await self._new_token(installation)
        return token.authorization

    async def _for_repo(self, repo: str | None, call: Callable[[str], Awaitable[Answer]]) -> Answer:
        """With an installation's token that was taken back, once more with a new one."""
        answer = await call(await self.authorization(repo or ""))
        if answer.status == 401 and self._app is not None and repo is not None:
            self._tokens.pop(await self._installation(repo), None)
            answer = await call(await self.authorization(repo))
        return _admitted(answer)

    async def _as_app(self, call: Callable[[str], Awaitable[Answer]]) -> Answer:
        """A first refusal tells GitHub's time, by which the second try signs."""
        if self._app is None:
            raise Rejected("only an App can be asked about")
        answer = await call(bearer(self._app.token(self.rest.now_us() / 1e6)))
        if answer.status == 401:
            answer = await call(bearer(self._app.token(self.rest.now_us() / 1e6)))
        return _admitted(answer)

    async def _installation(self, repo: str) -> str:
        owner = _checked(repo).partition("/")[0].lower()
        if owner not in self._installations:
            about = f"installation of the App for {repo}"
            answer = await self._as_app(self._getting(f"/repos/{repo}/installation", about))
            found = payload.number(answer.object(), "id")
            if found is None:
                raise ForgeUnreadable(f"GitHub's answer about the {about} has no id")
            self._installations[owner] = str(found)
        return self._installations[owner]

    async def _new_token(self, installation: str) -> _Token:
        path = f"/app/installations/{installation}/access_tokens"

        node = (await self._as_app(self._asking("POST", path, "access token"))).object()
        token, ends = payload.text(node, "token"), payload.moment(node, "expires_at")
        if token is None or ends is None:
            raise ForgeUnreadable("GitHub's answer has no access token")
        return _Token(bearer(token), int(ends * 1_000_000))

    def _getting(self, path: str, about: str, **how: Any) -> Callable[[str], Awaitable[Answer]]:
        return self._asking("GET", path, about, **how)

    def _asking(
        self, method: str, path: str | httpx2.URL, about: str, **how: Any
    ) -> Callable[[str], Awaitable[Answer]]:
        """A call that waits for credentials; that they are not accepted is an answer."""
        also = (401, *how.pop("also", ()))

        def call(authorization: str) -> Awaitable[Answer]:
            headers = {"authorization": authorization}
            return self.rest.send(method, path, about=about, headers=headers, also=also, **how)

        return call

    def _graphql_url(self) -> httpx2.URL:
        """GitHub's own server has it beside the REST API's root, not below it."""
        path = self.rest.root.path.rstrip("/").removesuffix("/v3")
        return self.rest.root.copy_with(path=f"{path}/graphql")


def _admitted(answer: Answer) -> Answer:
    if answer.status == 401:
        raise ForgeRefused(f"GitHub does not accept the credentials (401: {answer.says})")
    return answer


def _checked(repo: str) -> str:
    if not _REPO.fullmatch(repo):
        raise Rejected("a repository of GitHub is named owner/name")
    return repo


def number_of(text: str) -> str:
    """An id that stands in a path."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise Rejected("an id of GitHub is a number")
    return text


def sha_of(text: str) -> str:
    """A commit that stands in a path."""
    if not _SHA.fullmatch(text):
        raise Rejected("a commit is named by its whole hash")
    return text
