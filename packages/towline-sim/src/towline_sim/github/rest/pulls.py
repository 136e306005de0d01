"""Pull requests and their reviews."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from towline_sim.github.entities import Pull, ReviewEvent, User
from towline_sim.github.problems import Problem, invalid, not_found
from towline_sim.github.rest.calls import Answer, Call, Route, listed

_PULLS: Final = "/repos/{owner}/{repo}/pulls"
_ONE: Final = f"{_PULLS}/{{number}}"

Method: TypeAlias = Literal["merge", "squash", "rebase"]


def list_pulls(call: Call) -> Answer:
    state = call.query.get("state", "open")
    if state not in ("open", "closed", "all"):
        invalid("state", "invalid")
    pulls = call.world.pulls(
        call.repo_name,
        state=cast(Literal["open", "closed", "all"], state),
        head=call.query.get("head"),
        base=call.query.get("base"),
    )
    return listed(call, _sorted(call, pulls), call.show.pull_simple)


def _sorted(call: Call, pulls: Sequence[Pull]) -> list[Pull]:
    by_update = call.query.get("sort", "created") == "updated"
    default = "asc" if "sort" in call.query else "desc"
    return sorted(
        pulls,
        key=lambda pull: (pull.updated_at if by_update else pull.created_at, pull.number),
        reverse=call.query.get("direction", default) == "desc",
    )


def create_pull(call: Call) -> Answer:
    pull = call.world.open_pull(
        call.repo_name,
        head=call.given("head"),
        base=call.given("base"),
        title=call.given("title"),
        by=call.by,
        body=call.field("body"),
        draft=call.field("draft", bool, False),
    )
    shown = call.show.pull(pull)
    return Answer(shown, 201, {"location": shown["url"]})


def get_pull(call: Call) -> Answer:
    return Answer(call.show.pull(_pull(call)))


def edit_pull(call: Call) -> Answer:
    state = call.field("state")
    if state not in (None, "open", "closed"):
        invalid("state", "invalid")
    pull = call.world.edit_pull(
        call.repo_name,
        call.number("number"),
        call.by,
        title=call.field("title"),
        body=call.field("body"),
        base=call.field("base"),
        state=state,
    )
    return Answer(call.show.pull(pull))


def list_files(call: Call) -> Answer:
    pull = _pull(call)
    files = call.world.pull_files(call.repo_name, pull.number)
    return listed(call, files, lambda one: call.show.file_change(call.repo, one, pull.head_sha))


def list_commits(call: Call) -> Answer:
    commits = call.world.pull_commits(call.repo_name, _pull(call).number)
    return listed(call, commits, lambda one: call.show.commit(call.repo, one))


def is_merged(call: Call) -> Answer:
    return Answer(status=204) if _pull(call).merged else not_found()


def merge(call: Call) -> Answer:
    method = call.field("merge_method", default="merge")
    if method not in ("merge", "squash", "rebase"):
        invalid("merge_method", "invalid")
    sha = call.world.merge_pull(
        call.repo_name,
        call.number("number"),
        call.by,
        sha=call.field("sha"),
        method=cast(Method, method),
        title=call.field("commit_title"),
        message=call.field("commit_message"),
    )
    return Answer({"sha": sha, "merged": True, "message": "Pull Request successfully merged"})


def update_branch(call: Call) -> Answer:
    pull = _pull(call)
    expected = call.field("expected_head_sha")
    call.world.update_branch(call.repo_name, pull.number, call.by, expected_head_sha=expected)
    url = call.show.pull(pull)["html_url"]
    return Answer({"message": "Updating pull request branch.", "url": url}, 202)


def list_reviews(call: Call) -> Answer:
    reviews = call.world.reviews(call.repo_name, _pull(call).number)
    return listed(call, reviews, call.show.review)


def create_review(call: Call) -> Answer:
    event = call.field("event", default="COMMENT")
    if event not in ("APPROVE", "REQUEST_CHANGES", "COMMENT"):
        invalid("event", "invalid")
    review = call.world.review(
        call.repo_name,
        call.number("number"),
        call.by,
        cast(ReviewEvent, event),
        call.field("body", default=""),
        call.field("commit_id"),
    )
    return Answer(call.show.review(review))


def get_review(call: Call) -> Answer:
    reviews = call.world.reviews(call.repo_name, call.number("number"))
    wanted = call.number("review_id")
    found = next((one for one in reviews if one.id == wanted), None)
    return Answer(call.show.review(found)) if found else not_found()


def dismiss_review(call: Call) -> Answer:
    review = call.world.dismiss_review(
        call.repo_name,
        call.number("number"),
        call.number("review_id"),
        call.by,
        call.given("message"),
    )
    return Answer(call.show.review(review))


def requested_reviewers(call: Call) -> Answer:
    _pull(call)
    return Answer({"users": [], "teams": []})


def request_reviewers(call: Call) -> Answer:
    """Whom a review is asked of is checked, and shown in the answer; the world keeps no list."""
    pull = _pull(call)
    wanted = [call.world.find_user(login) for login in call.field("reviewers", list, [])]
    if pull.author in wanted:
        raise Problem(422, "Review cannot be requested from pull request author.")
    return Answer(_simple_with_reviewers(call, pull, wanted), 201)


def _simple_with_reviewers(call: Call, pull: Pull, users: Sequence[User]) -> dict[str, Any]:
    shown = [call.show.user(user) for user in users]
    return {**call.show.pull_simple(pull), "requested_reviewers": shown}


def _pull(call: Call) -> Pull:
    return call.world.pull(call.repo_name, call.number("number"))


ROUTES: Final = (
    Route("GET", _PULLS, list_pulls),
    Route("POST", _PULLS, create_pull, "read"),
    Route("GET", _ONE, get_pull),
    Route("PATCH", _ONE, edit_pull),
    Route("GET", f"{_ONE}/files", list_files),
    Route("GET", f"{_ONE}/commits", list_commits),
    Route("GET", f"{_ONE}/merge", is_merged),
    Route("PUT", f"{_ONE}/merge", merge),
    Route("PUT", f"{_ONE}/update-branch", update_branch),
    Route("GET", f"{_ONE}/reviews", list_reviews),
    Route("POST", f"{_ONE}/reviews", create_review, "read"),
    Route("GET", f"{_ONE}/reviews/{{review_id}}", get_review),
    Route("PUT", f"{_ONE}/reviews/{{review_id}}/dismissals", dismiss_review),
    Route("GET", f"{_ONE}/requested_reviewers", requested_reviewers),
    Route("POST", f"{_ONE}/requested_reviewers", request_reviewers),
)
