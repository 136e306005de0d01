"""Calls about one repository, with the credentials that open it: a token's, or an installation's.

An App signs in with its own key, asks which installation has the repository, and gets a token for
that, which is used until five minutes before its end. All repositories of an owner are opened by
one installation. What GitHub says is unchanged is taken from memory, and costs nothing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

import httpx2

from towline.errors import Rejected
from towline.forges.github_app import GitHubApp
from towline.forges.github_rest import Answer, GitHubRest, bearer, links_of
from towline.ports.hooks import ForgeRefused, ForgeUnreadable
from towline.sources import reading
from towline.sources.reading import Object

_RENEW_US: Final = 300 * 1_000_000
_PER_PAGE: Final = 100
_MOST_PAGES: Final = 50
_MOST_KEPT: Final = 2000
_LARGEST_KEPT: Final = 128 * 1024
_SHA: Final = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_REPO: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}/(?!\.{1,2}$)[A-Za-z0-9_.-]{1,100}")


class _Token(NamedTuple):
    authorization: str
    ends_us: int

    def __repr__(self) -> str:
        return "an installation's token"


class _Kept(NamedTuple):
    etag: str
    answer: Answer


class Access:
    """`login` is whose credentials they are, where GitHub cannot be asked."""

    def __init__(
        self,
        rest: GitHubRest,
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
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def account_of(self, repo: str) -> str:
        """Repositories of the same account can be asked about in one call."""
        owner = _checked(repo).partition("/")[0].lower()
        return "" if self._app is None else owner

    async def own_login(self) -> str:
        """Whose name our own comments and reviews carry."""
        if self._login is None:
            if self._app is None:
                call = self._getting("/user", "user", also=(403,))
                node = (await self._for_repo(None, call)).json()
                login = reading.text(_object(node), "login")
            else:
                node = (await self._as_app(self._getting("/app", "App"))).json()
                slug = reading.text(_object(node), "slug")
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
        whole = f"/repos/{_checked(repo)}{path}"
        place = str(self.rest.url(whole, query))
        kept = self._kept.get(place)
        etag = kept.etag if kept else None
        call = self._getting(whole, about, query=query, etag=etag, also=(403, *also))
        answer = await self._for_repo(repo, call)
        if answer.status == 403 and 403 not in also:
            raise ForgeRefused(f"GitHub does not open the {about} to us (403: {answer.says})")
        if answer.status == 304:
            if kept is None:
                raise ForgeUnreadable("GitHub says that nothing changed, but was not asked")
            self._kept.move_to_end(place)
            return kept.answer._replace(now_us=answer.now_us)
        self._keep(place, answer)
        return answer

    async def one(self, repo: str, path: str, about: str) -> Object:
        return _object((await self.get(repo, path, about)).json())

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
            listed = answer.json()
            if within is not None:
                listed = _object(listed).get(within)
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

        async def call(authorization: str) -> Answer:
            return await self.rest.write(
                method,
                whole,
                authorization=authorization,
                about=about,
                body=body,
                also=(401, *also),
            )

        return await self._for_repo(repo, call)

    async def ask(self, repo: str, body: object, about: str, also: Collection[int]) -> Answer:
        """A question in GraphQL, with the credentials for this repository."""

        async def call(authorization: str) -> Answer:
            return await self.rest.ask(
                self._graphql_url(),
                authorization=authorization,
                about=about,
                body=body,
                also=(401, *also),
            )

        return await self._for_repo(repo, call)

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
            found = reading.number(_object(answer.json()), "id")
            if found is None:
                raise ForgeUnreadable(f"GitHub's answer about the {about} has no id")
            self._installations[owner] = str(found)
        return self._installations[owner]

    async def _new_token(self, installation: str) -> _Token:
        path = f"/app/installations/{installation}/access_tokens"

        async def call(authorization: str) -> Answer:
            return await self.rest.write(
                "POST", path, authorization=authorization, about="access token", also=(401,)
            )

        node = _object((await self._as_app(call)).json())
        token, ends = reading.text(node, "token"), reading.moment(node, "expires_at")
        if token is None or ends is None:
            raise ForgeUnreadable("GitHub's answer has no access token")
        return _Token(bearer(token), int(ends * 1_000_000))

    def _getting(self, path: str, about: str, **how: Any) -> Callable[[str], Awaitable[Answer]]:
        also = (401, *how.pop("also", ()))

        async def call(authorization: str) -> Answer:
            return await self.rest.get(
                path, authorization=authorization, about=about, also=also, **how
            )

        return call

    def _graphql_url(self) -> httpx2.URL:
        """GitHub's own server has it beside the REST API's root, not below it."""
        path = self.rest.root.path.rstrip("/")
        return self.rest.root.copy_with(path=f"{path.removesuffix('/v3')}/graphql")

    def _keep(self, place: str, answer: Answer) -> None:
        self._kept.pop(place, None)
        etag = answer.headers.get("etag")
        if etag and answer.status == 200 and len(answer.body) <= _LARGEST_KEPT:
            self._kept[place] = _Kept(etag, answer)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)


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


def _object(node: object) -> Object:
    if not isinstance(node, dict):
        raise ForgeUnreadable("GitHub's answer is not an object")
    return node
