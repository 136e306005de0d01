"""How changes get to GitHub: where git goes, and the pull request that proposes them, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from towline.forges import payload
from towline.forges.base import GitAccess, NewPull, Opened
from towline.forges.client import Answer
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.github.auth import Access
from towline.forges.payload import Object

_PUBLIC_API: Final = "api.github.com"
_PUBLIC_HOST: Final = "github.com"
_SERVER_PREFIX: Final = "/api/v3"
_LONGEST_BODY: Final = 65_000
_LONGEST_TITLE: Final = 250


class GitHubPublisher:
    """`labels` are put on afterwards: a repeat puts them on as well, and finds them there."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def git_access(self, repo: str) -> GitAccess:
        """An App's token and a person's both go by this user's name."""
        authorization = await self._access.authorization(repo)
        password = authorization.removeprefix("Bearer ")
        return GitAccess(self._clone_url(repo), "x-access-token", password)

    def _clone_url(self, repo: str) -> str:
        """GitHub's own server has git beside its API; the public one on another host."""
        self._access.account_of(repo)  # refuses a name that is none
        root = self._access.rest.root
        if root.host == _PUBLIC_API:
            root = root.copy_with(host=_PUBLIC_HOST)
        prefix = root.path.rstrip("/").removesuffix(_SERVER_PREFIX)
        return str(root.copy_with(path=f"{prefix}/{repo}.git"))

    async def default_branch(self, repo: str) -> str:
        told = await self._access.one(repo, "", f"repository {repo}")
        branch = payload.text(told, "default_branch")
        if branch is None:
            raise ForgeUnreadable("GitHub's answer does not name the default branch")
        return branch

    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        return await self._find(repo, head, base)

    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        opened = await self._find(new.repo, new.head, new.base)
        if opened is None:
            if still is not None:
                still()
            opened = await self._create(new)
        if new.labels:
            await self._label(new.repo, opened.number, new.labels)
        return opened

    async def _create(self, new: NewPull) -> Opened:
        repo, head, base = new.repo, new.head, new.base
        told = {
            "head": head,
            "base": base,
            "title": new.title[:_LONGEST_TITLE],
            "body": new.body[:_LONGEST_BODY],
        }
        about = f"pull request of {head} in {repo}"
        try:
            answer = await self._access.write(repo, "POST", "/pulls", about, told, also=(403, 422))
        except ForgeUnavailable as lost:
            if not lost.maybe_done:
                raise
            found = await self._find(repo, head, base)
            if found is None:
                raise
            return found._replace(created=True)
        if answer.status < 300:
            return _opened(answer.json(), created=True)
        found = await self._find(repo, head, base) if answer.status == 422 else None
        if found is None:
            raise ForgeRefused(f"GitHub does not open the {about}: {_reasons(answer)}")
        return found

    async def _find(self, repo: str, head: str, base: str) -> Opened | None:
        """What is there from this branch of the repository itself; a fork's has another owner.

        Whatever its state: one that was decided on before anybody noted it is not opened again.
        """
        owner = repo.partition("/")[0]
        listed = await self._access.get(
            repo,
            "/pulls",
            f"pull requests of {head} in {repo}",
            query={"state": "all", "head": f"{owner}:{head}", "base": base},
        )
        pulls = listed.json()
        if not isinstance(pulls, list):
            raise ForgeUnreadable("GitHub's answer is not a list")
        for pull in pulls:
            if _is_from(pull, repo, head, base):
                return _opened(pull, created=False)
        return None

    async def _label(self, repo: str, number: int, labels: Sequence[str]) -> None:
        answer = await self._access.write(
            repo,
            "POST",
            f"/issues/{number}/labels",
            f"labels of {repo}#{number}",
            {"labels": list(dict.fromkeys(labels))},
            also=(403, 422),
        )
        if answer.status >= 400:
            raise ForgeRefused(f"GitHub does not label {repo}#{number}: {_reasons(answer)}")


def _is_from(pull: Any, repo: str, head: str, base: str) -> bool:
    """GitHub leaves out a filter that it does not understand, so each one is looked at."""
    if not isinstance(pull, dict):
        return False
    source = payload.inner(pull, "head")
    home = payload.text(payload.inner(source, "repo"), "full_name") or ""
    return (
        payload.text(source, "ref") == head
        and payload.text(payload.inner(pull, "base"), "ref") == base
        and home.lower() == repo.lower()
    )


def _opened(pull: Mapping[str, Any] | Any, *, created: bool) -> Opened:
    if not isinstance(pull, dict):
        raise ForgeUnreadable("GitHub's answer is not an object")
    number, url = pull.get("number"), payload.text(pull, "html_url")
    if not isinstance(number, int) or url is None:
        raise ForgeUnreadable("GitHub's answer does not say which pull request it is about")
    return Opened(number, url, created)


def _reasons(answer: Answer) -> str:
    """GitHub's message, with what it lists besides."""
    try:
        told = answer.json()
    except ForgeUnreadable:
        return answer.says
    errors: Object = told if isinstance(told, dict) else {}
    listed = errors.get("errors")
    texts = [
        payload.text(one, "message") or payload.text(one, "field") or ""
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
    ]
    return "; ".join(filter(None, [answer.says, *texts]))[:400] or str(answer.status)
