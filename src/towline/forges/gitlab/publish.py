"""How changes get to GitLab: where git goes, and the merge request that proposes them, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from towline.forges import payload
from towline.forges.base import GitAccess, NewPull, Opened
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.gitlab.client import GitLabApi, bounded, project_path
from towline.forges.payload import Object
from towline_once.canonical_json import JsonValue

_API_PREFIX: Final = "/api/v4"
_USER: Final = "oauth2"
_LONGEST_BODY: Final = 900_000
_LONGEST_TITLE: Final = 250


class GitLabPublisher:
    def __init__(self, api: GitLabApi) -> None:
        self._api = api

    @bounded
    async def git_access(self, repo: str) -> GitAccess:
        """On the API's own host: what the project says of its address is not followed."""
        project = await self._api.get(project_path(repo), f"project {repo}")
        path = payload.text(project, "path_with_namespace")
        if path is None:
            raise ForgeUnreadable("GitLab's answer does not name the project's path")
        root = self._api.http.root
        prefix = root.path.rstrip("/").removesuffix(_API_PREFIX)
        return GitAccess(str(root.copy_with(path=f"{prefix}/{path}.git")), _USER, self._api.token)

    @bounded
    async def default_branch(self, repo: str) -> str:
        project = await self._api.get(project_path(repo), f"project {repo}")
        branch = payload.text(project, "default_branch")
        if branch is None:
            raise ForgeRefused(f"the project {repo} has no default branch")
        return branch

    @bounded
    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        return await self._find(repo, head, base)

    @bounded
    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        wanted = [label for label in dict.fromkeys(new.labels) if label and "," not in label]
        opened = await self._find(new.repo, new.head, new.base)
        if opened is None:
            if still is not None:
                still()
            opened = await self._create(new, wanted)
        if wanted and not opened.created:
            await self._label(new.repo, opened.number, wanted)
        return opened

    async def _create(self, new: NewPull, labels: Sequence[str]) -> Opened:
        repo, head, base = new.repo, new.head, new.base
        about = f"merge request of {head} in {repo}"
        told: dict[str, JsonValue] = {
            "source_branch": head,
            "target_branch": base,
            "title": new.title[:_LONGEST_TITLE],
            "description": new.body[:_LONGEST_BODY],
            "remove_source_branch": True,
            **({"labels": ",".join(labels)} if labels else {}),
        }
        path = f"{project_path(repo)}/merge_requests"
        try:
            answer = await self._api.write("POST", path, about, told, also=(400, 403, 409, 422))
        except ForgeUnavailable as lost:
            if not lost.maybe_done:
                raise
            found = await self._find(repo, head, base)
            if found is None:
                raise
            return found._replace(created=True)
        if answer.status < 300:
            return _opened(answer.object(), created=True)
        found = await self._find(repo, head, base) if answer.status == 409 else None
        if found is None:
            says = answer.says or str(answer.status)
            raise ForgeRefused(f"GitLab does not open the {about}: {says}")
        return found

    async def _find(self, repo: str, head: str, base: str) -> Opened | None:
        """What is there from this branch of the project itself; a fork's has another source.

        Whatever its state: one that was decided on before anybody noted it is not opened again.
        """
        found = await self._api.all(
            f"{project_path(repo)}/merge_requests",
            f"merge requests of {head} in {repo}",
            state="all",
            source_branch=head,
            target_branch=base,
        )
        for one in found:
            own = one.get("source_project_id") == one.get("target_project_id")
            named = payload.text(one, "source_branch"), payload.text(one, "target_branch")
            if own and named == (head, base):
                return _opened(one, created=False)
        return None

    async def _label(self, repo: str, number: int, labels: Sequence[str]) -> None:
        path = f"{project_path(repo)}/merge_requests/{number}"
        about = f"merge request {repo}!{number}"
        await self._api.write("PUT", path, about, {"add_labels": ",".join(labels)})


def _opened(request: Object, *, created: bool) -> Opened:
    number, url = request.get("iid"), payload.text(request, "web_url")
    if not isinstance(number, int) or url is None:
        raise ForgeUnreadable("GitLab's answer does not say which merge request it is about")
    return Opened(number, url, created)
