"""How references, trees, files, branches and comparisons look in the REST API."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from towline.sim.entities import CommitFacts, Comparison, FileChange, Protection, Repo
from towline.sim.rest_shapes_base import BaseShapes

_TREE_MODE: Final = "40000"
_LINE: Final = 60


class GitShapes(BaseShapes):
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
