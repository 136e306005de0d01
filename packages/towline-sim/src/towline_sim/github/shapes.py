"""How everything in the world looks in the REST API, as GitHub describes it with OpenAPI."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from towline_sim.github.entities import (
    App,
    CheckRun,
    CheckSuite,
    CombinedStatus,
    Comment,
    CommitFacts,
    Comparison,
    FileChange,
    Job,
    Label,
    Protection,
    Pull,
    Reaction,
    Repo,
    Review,
    Role,
    Status,
    User,
    WorkflowRun,
)
from towline_sim.github.world import World

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
_TREE_MODE: Final = "40000"
_LINE: Final = 60
_REACTIONS: Final = ("+1", "-1", "laugh", "confused", "heart", "hooray", "eyes", "rocket")


class Shapes:
    """One for each answer: what it has shown once, it keeps.

    `root` is where the API is served; the pages for people stand below it too."""

    # ------------------------------------------------------------------
    # How people, repositories, labels and commits look in the REST API.

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

    # ------------------------------------------------------------------
    # How references, trees, files, branches and comparisons look in the REST API.

    def ref(self, repo: Repo, name: str, sha: str) -> dict[str, Any]:
        url = f"{self.repo_url(repo.full_name)}/git"
        target = {"type": "commit", "sha": sha, "url": f"{url}/commits/{sha}"}
        return {
            "ref": name,
            "node_id": f"REF_{repo.id}_{name}",
            "url": f"{url}/{quote(name)}",
            "object": target,
        }

    def tree(self, repo: Repo, sha: str, *, deep: bool) -> dict[str, Any]:
        url = f"{self.repo_url(repo.full_name)}/git"
        entries = [
            {"path": path, "mode": mode.zfill(6), "type": kind, "sha": one}
            | {"url": f"{url}/{kind}s/{one}"}
            | ({"size": len(self.world.objects.content(one))} if kind == "blob" else {})
            for path, mode, kind, one in self._entries(sha, "", deep)
        ]
        return {"sha": sha, "url": f"{url}/trees/{sha}", "tree": entries, "truncated": False}

    def _entries(self, tree: str, prefix: str, deep: bool) -> Iterator[tuple[str, str, str, str]]:
        for entry in self.world.objects.entries(tree):
            kind = "tree" if entry.mode == _TREE_MODE else "blob"
            yield prefix + entry.name, entry.mode, kind, entry.sha
            if deep and kind == "tree":
                yield from self._entries(entry.sha, f"{prefix}{entry.name}/", deep)

    def blob(self, repo: Repo, sha: str) -> dict[str, Any]:
        content = self.world.objects.content(sha)
        return {
            "sha": sha,
            "node_id": f"B_{sha}",
            "size": len(content),
            "url": f"{self.repo_url(repo.full_name)}/git/blobs/{sha}",
            "content": _in_lines(content),
            "encoding": "base64",
        }

    def content_file(self, repo: Repo, path: str, sha: str, rev: str) -> dict[str, Any]:
        content = self.world.objects.content(sha)
        entry = self.content_entry(repo, path, sha, rev)
        return {**entry, "content": _in_lines(content), "encoding": "base64"}

    def content_entry(self, repo: Repo, path: str, sha: str | None, rev: str) -> dict[str, Any]:
        """An entry of a folder's listing; a folder has no blob."""
        url, page = self.repo_url(repo.full_name), self.page_url(repo.full_name)
        tree, kind = ("tree", "trees") if sha is None else ("blob", "blobs")
        place = quote(path)
        name = sha or self._folder_sha(repo, path, rev)
        links = {
            "self": f"{url}/contents/{place}?ref={quote(rev)}",
            "git": f"{url}/git/{kind}/{name}",
            "html": f"{page}/{tree}/{quote(rev)}/{place}",
        }
        return {
            "type": "dir" if sha is None else "file",
            "size": 0 if sha is None else len(self.world.objects.content(sha)),
            "name": path.rpartition("/")[2],
            "path": path,
            "sha": name,
            "url": links["self"],
            "git_url": links["git"],
            "html_url": links["html"],
            "download_url": None if sha is None else f"{page}/raw/{quote(rev)}/{place}",
            "_links": links,
        }

    def _folder_sha(self, repo: Repo, path: str, rev: str) -> str:
        tree = self.world.commit(repo.full_name, rev).tree
        for part in path.split("/"):
            entries = self.world.objects.entries(tree)
            tree = next(entry.sha for entry in entries if entry.name == part)
        return tree

    def branch_short(self, repo: Repo, name: str, sha: str) -> dict[str, Any]:
        url = self.repo_url(repo.full_name)
        protected = self.world.protection(repo.full_name, name) is not None
        commit = {"sha": sha, "url": f"{url}/commits/{sha}"}
        return {"name": name, "commit": commit, "protected": protected}

    def branch(self, repo: Repo, name: str, tip: CommitFacts) -> dict[str, Any]:
        url = f"{self.repo_url(repo.full_name)}/branches/{quote(name, safe='')}"
        page = f"{self.page_url(repo.full_name)}/tree/{name}"
        protection = self.world.protection(repo.full_name, name)
        return {
            "name": name,
            "commit": self.commit(repo, tip),
            "_links": {"self": url, "html": page},
            "protected": protection is not None,
            "protection": {
                "enabled": protection is not None,
                "required_status_checks": _checks(protection or Protection()),
            },
            "protection_url": f"{url}/protection",
        }

    def protection(self, repo: Repo, name: str, protection: Protection) -> dict[str, Any]:
        branch = f"{self.repo_url(repo.full_name)}/branches/{quote(name, safe='')}"
        url = f"{branch}/protection"
        reviews = {
            "url": f"{url}/required_pull_request_reviews",
            "dismiss_stale_reviews": protection.dismiss_stale_reviews,
            "require_code_owner_reviews": False,
            "required_approving_review_count": protection.required_approvals,
        }
        return {
            "url": url,
            "required_status_checks": _checks(protection),
            "required_pull_request_reviews": reviews,
            "enforce_admins": {"url": f"{url}/enforce_admins", "enabled": False},
            "required_linear_history": {"enabled": False},
            "allow_force_pushes": {"enabled": False},
            "allow_deletions": {"enabled": False},
        }

    def comparison(
        self,
        repo: Repo,
        ends: tuple[str, str],
        found: Comparison,
        files: Sequence[FileChange],
    ) -> dict[str, Any]:
        base, head = ends
        page = f"{self.page_url(repo.full_name)}/compare/{base}...{head}"
        of = self.world.commit
        return {
            "url": f"{self.repo_url(repo.full_name)}/compare/{base}...{head}",
            "html_url": page,
            "permalink_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "base_commit": self.commit(repo, of(repo.full_name, base)),
            "merge_base_commit": self.commit(repo, of(repo.full_name, found.merge_base)),
            "status": _relation(found),
            "ahead_by": found.ahead,
            "behind_by": found.behind,
            "total_commits": found.ahead,
            "commits": [self.commit(repo, of(repo.full_name, sha)) for sha in found.commits],
            "files": [self.file_change(repo, one, head) for one in files],
        }

    # ------------------------------------------------------------------
    # How pull requests, reviews and comments look in the REST API.

    def pull(self, pull: Pull) -> dict[str, Any]:
        """As it shows when it is asked for by itself: mergeability and counts are in it."""
        found = self.world.mergeability(pull)
        return {
            **self.pull_simple(pull),
            "merged": pull.merged,
            "mergeable": found.mergeable,
            "rebaseable": found.mergeable,
            "mergeable_state": found.state,
            "merged_by": self.user(pull.merged_by) if pull.merged_by else None,
            "comments": pull.comments,
            "review_comments": 0,
            "maintainer_can_modify": False,
            "commits": pull.commits,
            "additions": pull.additions,
            "deletions": pull.deletions,
            "changed_files": pull.changed_files,
        }

    def pull_simple(self, pull: Pull) -> dict[str, Any]:
        repo = self.world.repo(pull.repo)
        links = self._links(pull)
        page = self.pull_page(pull)
        return {
            "url": links["self"],
            "id": pull.id,
            "node_id": f"PR_{pull.id}",
            "html_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            **{f"{name}_url": url for name, url in links.items() if name not in ("self", "html")},
            "number": pull.number,
            "state": pull.state,
            "locked": False,
            "title": pull.title,
            "user": self.user(pull.author),
            "body": pull.body,
            "labels": [self.label(repo, one) for one in pull.labels],
            "milestone": None,
            "active_lock_reason": None,
            "created_at": when(pull.created_at),
            "updated_at": when(pull.updated_at),
            "closed_at": maybe_when(pull.closed_at),
            "merged_at": maybe_when(pull.merged_at),
            "merge_commit_sha": pull.merge_commit_sha,
            "assignee": None,
            "assignees": [],
            "requested_reviewers": [],
            "requested_teams": [],
            "head": self._end(pull.head_repo, pull.head_ref, pull.head_sha),
            "base": self._end(pull.repo, pull.base_ref, pull.base_sha),
            "_links": {name: {"href": url} for name, url in links.items()},
            "author_association": self.association(pull.repo, pull.author),
            "auto_merge": None,
            "draft": pull.draft,
        }

    def pull_page(self, pull: Pull) -> str:
        return f"{self.page_url(pull.repo)}/pull/{pull.number}"

    def pull_minimal(self, repo: str, number: int) -> dict[str, Any]:
        """As checks list it; to list it is not to ask for its mergeability."""
        pull = self.world.known_pull(repo, number)
        ends = {
            "head": (pull.head_repo, pull.head_ref, pull.head_sha),
            "base": (pull.repo, pull.base_ref, pull.base_sha),
        }
        return {
            "id": pull.id,
            "number": pull.number,
            "url": f"{self.repo_url(repo)}/pulls/{pull.number}",
            **{name: self._short_end(*end) for name, end in ends.items()},
        }

    def _short_end(self, full_name: str, ref: str, sha: str) -> dict[str, Any]:
        repo = self.world.repo(full_name)
        short = {"id": repo.id, "url": self.repo_url(full_name), "name": repo.name}
        return {"ref": ref, "sha": sha, "repo": short}

    def _end(self, full_name: str, ref: str, sha: str) -> dict[str, Any]:
        repo = self.world.repo(full_name)
        return {
            "label": f"{repo.owner.login}:{ref}",
            "ref": ref,
            "sha": sha,
            "user": self.user(repo.owner),
            "repo": self.repo(repo),
        }

    def _links(self, pull: Pull) -> dict[str, str]:
        repo = self.repo_url(pull.repo)
        url, issue = f"{repo}/pulls/{pull.number}", f"{repo}/issues/{pull.number}"
        return {
            "self": url,
            "html": self.pull_page(pull),
            "issue": issue,
            "comments": f"{issue}/comments",
            "review_comments": f"{url}/comments",
            "review_comment": f"{repo}/pulls/comments{{/number}}",
            "commits": f"{url}/commits",
            "statuses": f"{repo}/statuses/{pull.head_sha}",
        }

    def association(self, full_name: str, user: User) -> str:
        """Vague, as GitHub's is: no decision should rest on it."""
        repo = self.world.repo(full_name)
        if user.login == repo.owner.login:
            return "OWNER"
        role = self.world.permission(full_name, user.login)
        return "COLLABORATOR" if role not in ("none", "read") else "NONE"

    def issue(self, pull: Pull) -> dict[str, Any]:
        repo = self.world.repo(pull.repo)
        url, page = f"{self.repo_url(pull.repo)}/issues/{pull.number}", self.pull_page(pull)
        return {
            "id": pull.id,
            "node_id": f"PR_{pull.id}",
            "url": url,
            "repository_url": self.repo_url(pull.repo),
            "labels_url": f"{url}/labels{{/name}}",
            "comments_url": f"{url}/comments",
            "events_url": f"{url}/events",
            "html_url": page,
            "number": pull.number,
            "state": pull.state,
            "title": pull.title,
            "body": pull.body,
            "user": self.user(pull.author),
            "labels": [self.label(repo, one) for one in pull.labels],
            "assignee": None,
            "assignees": [],
            "milestone": None,
            "locked": False,
            "active_lock_reason": None,
            "comments": pull.comments,
            "pull_request": {
                "url": f"{self.repo_url(pull.repo)}/pulls/{pull.number}",
                "html_url": page,
                "diff_url": f"{page}.diff",
                "patch_url": f"{page}.patch",
                "merged_at": maybe_when(pull.merged_at),
            },
            "closed_at": maybe_when(pull.closed_at),
            "created_at": when(pull.created_at),
            "updated_at": when(pull.updated_at),
            "author_association": self.association(pull.repo, pull.author),
        }

    def review(self, review: Review) -> dict[str, Any]:
        url = f"{self.repo_url(review.repo)}/pulls/{review.number}"
        page = f"{self.page_url(review.repo)}/pull/{review.number}"
        html = f"{page}#pullrequestreview-{review.id}"
        return {
            "id": review.id,
            "node_id": f"PRR_{review.id}",
            "user": self.user(review.author),
            "body": review.body,
            "state": review.state,
            "html_url": html,
            "pull_request_url": url,
            "_links": {"html": {"href": html}, "pull_request": {"href": url}},
            "submitted_at": when(review.submitted_at),
            "commit_id": review.commit_id,
            "author_association": self.association(review.repo, review.author),
        }

    def comment(self, comment: Comment) -> dict[str, Any]:
        repo = self.repo_url(comment.repo)
        page = f"{self.page_url(comment.repo)}/pull/{comment.number}"
        url = f"{repo}/issues/comments/{comment.id}"
        contents = [one.content for one in comment.reactions]
        return {
            "id": comment.id,
            "node_id": f"IC_{comment.id}",
            "url": url,
            "html_url": f"{page}#issuecomment-{comment.id}",
            "issue_url": f"{repo}/issues/{comment.number}",
            "user": self.user(comment.author),
            "body": comment.body,
            "created_at": when(comment.created_at),
            "updated_at": when(comment.updated_at),
            "author_association": self.association(comment.repo, comment.author),
            "performed_via_github_app": None,
            "reactions": {
                "url": f"{url}/reactions",
                "total_count": len(contents),
                **{name: contents.count(name) for name in _REACTIONS},
            },
        }

    def reaction(self, reaction: Reaction) -> dict[str, Any]:
        return {
            "id": reaction.id,
            "node_id": f"REA_{reaction.id}",
            "user": self.user(reaction.user),
            "content": reaction.content,
            "created_at": when(reaction.created_at),
        }

    # ------------------------------------------------------------------
    # How check runs, suites, statuses and workflow runs look in the REST API.

    def app(self, app: App) -> dict[str, Any]:
        rights = {"checks": "write", "contents": "write", "metadata": "read", "issues": "write"}
        return {
            "id": app.id,
            "slug": app.slug,
            "node_id": f"A_{app.id}",
            "owner": self.user(app.owner),
            "name": app.name,
            "description": None,
            "external_url": f"{self.root}/apps/{app.slug}",
            "html_url": f"{self.root}/apps/{app.slug}",
            "created_at": when(0),
            "updated_at": when(0),
            "permissions": rights,
            "events": ["check_run", "check_suite", "pull_request", "push"],
        }

    def pulls_listed(self, repo: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self.pull_minimal(repo, number) for number in numbers]

    def run(self, run: CheckRun) -> dict[str, Any]:
        url = f"{self.repo_url(run.repo)}/check-runs/{run.id}"
        page = f"{self.page_url(run.repo)}/runs/{run.id}"
        return {
            "id": run.id,
            "node_id": f"CR_{run.id}",
            "name": run.name,
            "head_sha": run.head_sha,
            "external_id": run.external_id,
            "url": url,
            "html_url": page,
            "details_url": run.details_url or page,
            "status": run.status,
            "conclusion": run.conclusion,
            "started_at": when(run.started_at),
            "completed_at": maybe_when(run.completed_at),
            "output": {
                "title": run.title,
                "summary": run.summary,
                "text": run.text,
                "annotations_count": 0,
                "annotations_url": f"{url}/annotations",
            },
            "check_suite": {"id": run.suite_id},
            "app": self.app(run.app),
            "pull_requests": self.pulls_listed(run.repo, run.pulls),
        }

    def suite(self, suite: CheckSuite) -> dict[str, Any]:
        url = f"{self.repo_url(suite.repo)}/check-suites/{suite.id}"
        return {
            "id": suite.id,
            "node_id": f"CS_{suite.id}",
            "head_branch": suite.head_branch,
            "head_sha": suite.head_sha,
            "status": suite.status,
            "conclusion": suite.conclusion,
            "url": url,
            "before": suite.before,
            "after": suite.head_sha,
            "pull_requests": self.pulls_listed(suite.repo, suite.pulls),
            "app": self.app(suite.app),
            "repository": self.repo(self.world.repo(suite.repo)),
            "created_at": when(suite.created_at),
            "updated_at": when(suite.updated_at),
            "head_commit": self.simple_commit(suite.repo, suite.head_sha),
            "latest_check_runs_count": len(self.world.suite_runs(suite.repo, suite.id)),
            "check_runs_url": f"{url}/check-runs",
            "rerequestable": True,
        }

    def status(self, status: Status) -> dict[str, Any]:
        return {**self.status_short(status), "creator": self.user(status.creator)}

    def status_short(self, status: Status) -> dict[str, Any]:
        return {
            "url": f"{self.repo_url(status.repo)}/statuses/{status.sha}",
            "avatar_url": f"{self.root}/avatars/u/{status.creator.id}",
            "id": status.id,
            "node_id": f"SC_{status.id}",
            "state": status.state,
            "description": status.description,
            "target_url": status.target_url,
            "context": status.context,
            "created_at": when(status.created_at),
            "updated_at": when(status.updated_at),
        }

    def combined(self, repo: Repo, sha: str, combined: CombinedStatus) -> dict[str, Any]:
        url = f"{self.repo_url(repo.full_name)}/commits/{sha}"
        return {
            "state": combined.state,
            "statuses": [self.status_short(one) for one in combined.statuses],
            "sha": sha,
            "total_count": len(combined.statuses),
            "repository": self.repo(repo),
            "commit_url": url,
            "url": f"{url}/status",
        }

    def workflow_run(self, run: WorkflowRun) -> dict[str, Any]:
        repo = self.world.repo(run.repo)
        url, base = f"{self.repo_url(run.repo)}/actions/runs/{run.id}", self.repo_url(run.repo)
        below = ("jobs", "logs", "cancel", "rerun", "artifacts")
        return {
            "id": run.id,
            "name": run.name,
            "node_id": f"WFR_{run.id}",
            "check_suite_id": run.suite_id,
            "check_suite_node_id": f"CS_{run.suite_id}",
            "head_branch": run.head_branch,
            "head_sha": run.head_sha,
            "path": run.path,
            "run_number": run.run_number,
            "run_attempt": run.run_attempt,
            "event": run.event,
            "display_title": run.title,
            "status": run.status,
            "conclusion": run.conclusion,
            "workflow_id": run.workflow_id,
            "url": url,
            "html_url": f"{self.page_url(run.repo)}/actions/runs/{run.id}",
            "pull_requests": self.pulls_listed(run.repo, run.pulls),
            "created_at": when(run.created_at),
            "updated_at": when(run.updated_at),
            "run_started_at": when(run.started_at),
            "actor": self.user(run.actor),
            "triggering_actor": self.user(run.actor),
            **{f"{name}_url": f"{url}/{name}" for name in below},
            "check_suite_url": f"{base}/check-suites/{run.suite_id}",
            "workflow_url": f"{base}/actions/workflows/{run.workflow_id}",
            "previous_attempt_url": _previous(url, run.run_attempt),
            "head_commit": self.simple_commit(run.repo, run.head_sha),
            "repository": self.repo(repo),
            "head_repository": self.repo(repo),
        }

    def job(self, job: Job) -> dict[str, Any]:
        base = self.repo_url(job.repo)
        runner = ("runner_id", "runner_name", "runner_group_id", "runner_group_name")
        return {
            "id": job.id,
            "run_id": job.run_id,
            "run_url": f"{base}/actions/runs/{job.run_id}",
            "run_attempt": job.run_attempt,
            "node_id": f"JOB_{job.id}",
            "head_sha": job.head_sha,
            "url": f"{base}/actions/jobs/{job.id}",
            "html_url": f"{self.page_url(job.repo)}/actions/runs/{job.run_id}/job/{job.id}",
            "status": job.status,
            "conclusion": job.conclusion,
            "created_at": when(job.created_at),
            "started_at": when(job.started_at),
            "completed_at": maybe_when(job.completed_at),
            "name": job.name,
            "steps": [],
            "check_run_url": f"{base}/check-runs/{job.check_run_id}",
            "labels": ["ubuntu-latest"],
            **dict.fromkeys(runner),
            "workflow_name": job.workflow_name,
            "head_branch": job.head_branch,
        }


def when(time: float) -> str:
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def maybe_when(time: float | None) -> str | None:
    return None if time is None else when(time)


def _relation(found: Comparison) -> str:
    if found.ahead and found.behind:
        return "diverged"
    return "ahead" if found.ahead else "behind" if found.behind else "identical"


def _checks(protection: Protection) -> dict[str, Any]:
    contexts = list(protection.required_checks)
    checks = [{"context": name, "app_id": None} for name in contexts]
    return {"strict": protection.up_to_date, "contexts": contexts, "checks": checks}


def _in_lines(content: bytes) -> str:
    text = base64.b64encode(content).decode()
    return "".join(f"{text[at : at + _LINE]}\n" for at in range(0, len(text), _LINE))


def _previous(url: str, attempt: int) -> str | None:
    return f"{url}/attempts/{attempt - 1}" if attempt > 1 else None
