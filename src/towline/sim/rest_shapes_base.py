"""How people, repositories, labels and commits look in the REST API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from towline.sim.entities import (
    CommitFacts,
    FileChange,
    Label,
    Repo,
    Role,
    User,
)
from towline.sim.world import World

_USER_LINKS: Final[Mapping[str, str]] = {
    "followers_url": "/followers",
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs",
    "repos_url": "/repos",
    "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}
_REPO_LINKS: Final[Mapping[str, str]] = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "contributors_url": "/contributors",
    "deployments_url": "/deployments",
    "downloads_url": "/downloads",
    "events_url": "/events",
    "forks_url": "/forks",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "hooks_url": "/hooks",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "languages_url": "/languages",
    "merges_url": "/merges",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "stargazers_url": "/stargazers",
    "statuses_url": "/statuses/{sha}",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "tags_url": "/tags",
    "teams_url": "/teams",
    "trees_url": "/git/trees{/sha}",
}
_COUNTS: Final = (
    *("forks", "forks_count", "open_issues", "open_issues_count", "size"),
    *("stargazers_count", "watchers", "watchers_count"),
)
_LESSER_ROLE: Final[Mapping[Role, str]] = {"triage": "read", "maintain": "write"}
_RIGHTS: Final[Mapping[str, frozenset[str]]] = {
    "pull": frozenset({"read", "triage", "write", "maintain", "admin"}),
    "triage": frozenset({"triage", "write", "maintain", "admin"}),
    "push": frozenset({"write", "maintain", "admin"}),
    "maintain": frozenset({"maintain", "admin"}),
    "admin": frozenset({"admin"}),
}


def when(time: float) -> str:
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def maybe_when(time: float | None) -> str | None:
    return None if time is None else when(time)


class BaseShapes:
    """`root` is where the API is served; the pages for people stand below it too."""

    def __init__(self, world: World, root: str) -> None:
        self.world = world
        self.root = root
        self._repos: dict[str, dict[str, Any]] = {}

    def repo_url(self, full_name: str) -> str:
        return f"{self.root}/repos/{full_name}"

    def page_url(self, full_name: str) -> str:
        return f"{self.root}/{full_name}"

    def user(self, user: User) -> dict[str, Any]:
        url = f"{self.root}/users/{user.login}".replace("[", "%5B").replace("]", "%5D")
        return {
            "login": user.login,
            "id": user.id,
            "node_id": f"U_{user.id}",
            "avatar_url": f"{self.root}/avatars/u/{user.id}",
            "gravatar_id": "",
            "url": url,
            "html_url": url.replace("/users/", "/"),
            **{name: url + path for name, path in _USER_LINKS.items()},
            "type": user.kind,
            "site_admin": False,
        }

    def public_user(self, user: User) -> dict[str, Any]:
        since = when(0)
        absent = ("bio", "blog", "company", "email", "hireable", "location", "name")
        counts = ("followers", "following", "public_gists", "public_repos")
        return {
            **self.user(user),
            **dict.fromkeys(absent),
            **dict.fromkeys(counts, 0),
            "created_at": since,
            "updated_at": since,
        }

    def private_user(self, user: User) -> dict[str, Any]:
        counts = ("collaborators", "disk_usage", "owned_private_repos", "private_gists")
        private = {**dict.fromkeys(counts, 0), "total_private_repos": 0}
        return {**self.public_user(user), **private, "two_factor_authentication": True}

    def collaborator(self, user: User, role: Role) -> dict[str, Any]:
        rights = {name: role in roles for name, roles in _RIGHTS.items()}
        return {**self.user(user), "permissions": rights, "role_name": role}

    def permission(self, user: User, role: Role) -> dict[str, Any]:
        """`permission` knows four words, `role_name` is exact."""
        word = _LESSER_ROLE.get(role, role)
        return {"permission": word, "role_name": role, "user": self.collaborator(user, role)}

    def repo(self, repo: Repo) -> dict[str, Any]:
        known = self._repos.get(repo.full_name)
        if known is None:
            known = self._repos[repo.full_name] = self._repo(repo)
        return known

    def _repo(self, repo: Repo) -> dict[str, Any]:
        url, page = self.repo_url(repo.full_name), self.page_url(repo.full_name)
        bare = page.partition("://")[2]
        return {
            "id": repo.id,
            "node_id": f"R_{repo.id}",
            "name": repo.name,
            "full_name": repo.full_name,
            "owner": self.user(repo.owner),
            "private": repo.private,
            "html_url": page,
            "description": repo.description,
            "fork": repo.parent is not None,
            "url": url,
            **{name: url + path for name, path in _REPO_LINKS.items()},
            **dict.fromkeys(_COUNTS, 0),
            "clone_url": f"{page}.git",
            "git_url": f"git://{bare}.git",
            "ssh_url": f"git@{bare.replace('/', ':', 1)}.git",
            "svn_url": page,
            "mirror_url": None,
            "homepage": None,
            "language": None,
            "license": None,
            "default_branch": repo.default_branch,
            "visibility": "private" if repo.private else "public",
            "archived": False,
            "disabled": False,
            "has_issues": True,
            **dict.fromkeys(("has_projects", "has_wiki", "has_pages"), False),
            **dict.fromkeys(("has_downloads", "has_discussions"), False),
            "delete_branch_on_merge": repo.options.delete_branch_on_merge,
            "pushed_at": when(repo.pushed_at),
            "created_at": when(repo.created_at),
            "updated_at": when(repo.updated_at),
        }

    def full_repo(self, repo: Repo) -> dict[str, Any]:
        methods = {f"allow_{name}": True for name in ("merge_commit", "squash_merge")}
        extra: dict[str, Any] = {"network_count": 0, "subscribers_count": 0, **methods}
        if repo.parent is not None:
            extra["parent"] = extra["source"] = self.repo(self.world.repo(repo.parent))
        return {**self.repo(repo), **extra, "allow_rebase_merge": True, "topics": []}

    def label(self, repo: Repo, label: Label) -> dict[str, Any]:
        return {
            "id": label.id,
            "node_id": f"LA_{label.id}",
            "url": f"{self.repo_url(repo.full_name)}/labels/{label.name.replace(' ', '%20')}",
            "name": label.name,
            "description": label.description or "",
            "color": label.color,
            "default": False,
        }

    def commit(
        self, repo: Repo, facts: CommitFacts, files: Sequence[FileChange] | None = None
    ) -> dict[str, Any]:
        url = f"{self.repo_url(repo.full_name)}/commits/{facts.sha}"
        shown: dict[str, Any] = {
            "sha": facts.sha,
            "node_id": f"C_{facts.sha}",
            "url": url,
            "html_url": f"{self.page_url(repo.full_name)}/commit/{facts.sha}",
            "comments_url": f"{url}/comments",
            "commit": self._bare_commit(repo, facts) | {"comment_count": 0},
            "author": None,
            "committer": None,
            "parents": self._parents(repo, facts, "commits"),
        }
        if files is not None:
            added, removed = sum(f.additions for f in files), sum(f.deletions for f in files)
            total = added + removed
            shown["stats"] = {"additions": added, "deletions": removed, "total": total}
            shown["files"] = [self.file_change(repo, one, facts.sha) for one in files]
        return shown

    def git_commit(self, repo: Repo, facts: CommitFacts) -> dict[str, Any]:
        return {
            "sha": facts.sha,
            "node_id": f"C_{facts.sha}",
            "html_url": f"{self.page_url(repo.full_name)}/commit/{facts.sha}",
            **self._bare_commit(repo, facts),
            "parents": self._parents(repo, facts, "git/commits"),
        }

    def _bare_commit(self, repo: Repo, facts: CommitFacts) -> dict[str, Any]:
        url = f"{self.repo_url(repo.full_name)}/git"
        date = when(facts.at)
        who = {"name": facts.author_name, "email": facts.author_email, "date": date}
        unsigned = dict.fromkeys(("payload", "signature", "verified_at"))
        return {
            "url": f"{url}/commits/{facts.sha}",
            "author": who,
            "committer": who,
            "message": facts.message,
            "tree": {"sha": facts.tree, "url": f"{url}/trees/{facts.tree}"},
            "verification": {"verified": False, "reason": "unsigned", **unsigned},
        }

    def _parents(self, repo: Repo, facts: CommitFacts, kind: str) -> list[dict[str, str]]:
        url, page = self.repo_url(repo.full_name), self.page_url(repo.full_name)
        return [
            {"sha": sha, "url": f"{url}/{kind}/{sha}", "html_url": f"{page}/commit/{sha}"}
            for sha in facts.parents
        ]

    def simple_commit(self, repo: str, sha: str) -> dict[str, Any]:
        facts = self.world.commit(repo, sha)
        who = {"name": facts.author_name, "email": facts.author_email}
        return {
            "id": facts.sha,
            "tree_id": facts.tree,
            "message": facts.message,
            "timestamp": when(facts.at),
            "author": who,
            "committer": who,
        }

    def file_change(self, repo: Repo, change: FileChange, sha: str) -> dict[str, Any]:
        page = self.page_url(repo.full_name)
        return {
            "sha": change.sha,
            "filename": change.path,
            "status": change.status,
            "additions": change.additions,
            "deletions": change.deletions,
            "changes": change.additions + change.deletions,
            "blob_url": f"{page}/blob/{sha}/{change.path}",
            "raw_url": f"{page}/raw/{sha}/{change.path}",
            "contents_url": f"{self.repo_url(repo.full_name)}/contents/{change.path}?ref={sha}",
            "patch": change.patch,
        }
