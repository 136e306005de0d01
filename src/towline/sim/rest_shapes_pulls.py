"""How pull requests, reviews and comments look in the REST API."""

from __future__ import annotations

from typing import Any, Final

from towline.sim.entities import Comment, Pull, Reaction, Review, User
from towline.sim.rest_shapes_base import BaseShapes, maybe_when, when

_REACTIONS: Final = ("+1", "-1", "laugh", "confused", "heart", "hooray", "eyes", "rocket")


class PullShapes(BaseShapes):
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
        """Vague, as GitHub's is: nobody should decide by it."""
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
