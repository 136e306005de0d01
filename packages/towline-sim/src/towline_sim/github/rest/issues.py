"""The half of a pull request that is an issue: comments, reactions, labels."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, cast, get_args

from towline_sim.github.entities import Comment, ReactionContent
from towline_sim.github.problems import Problem, invalid
from towline_sim.github.rest.calls import Answer, Call, Route, listed

_REPO: Final = "/repos/{owner}/{repo}"
_ISSUE: Final = f"{_REPO}/issues/{{number}}"
_COMMENT: Final = f"{_REPO}/issues/comments/{{comment_id}}"


def get_issue(call: Call) -> Answer:
    return Answer(call.show.issue(call.world.pull(call.repo_name, call.number("number"))))


def list_comments(call: Call) -> Answer:
    comments = call.world.comments(call.repo_name, call.number("number"))
    since = call.query.get("since")
    chosen = _since(comments, since) if since else comments
    return listed(call, chosen, call.show.comment)


def _since(comments: Sequence[Comment], text: str) -> list[Comment]:
    try:
        since = datetime.fromisoformat(text).timestamp()
    except ValueError:
        invalid("since", "invalid")
    return [one for one in comments if one.updated_at >= since]


def create_comment(call: Call) -> Answer:
    body = _text(call)
    comment = call.world.comment(call.repo_name, call.number("number"), call.by, body)
    shown = call.show.comment(comment)
    return Answer(shown, 201, {"location": shown["url"]})


def _text(call: Call) -> str:
    body = call.given("body")
    if not body.strip():
        raise Problem(
            422,
            "Validation Failed",
            [{"resource": "IssueComment", "code": "unprocessable", "field": "data",
              "message": "Body cannot be blank"}],
        )  # fmt: skip
    return str(body)


def get_comment(call: Call) -> Answer:
    return Answer(call.show.comment(_comment(call)))


def edit_comment(call: Call) -> Answer:
    comment_id = call.number("comment_id")
    comment = call.world.edit_comment(call.repo_name, comment_id, call.by, _text(call))
    return Answer(call.show.comment(comment))


def delete_comment(call: Call) -> Answer:
    call.world.delete_comment(call.repo_name, call.number("comment_id"), call.by)
    return Answer(status=204)


def list_reactions(call: Call) -> Answer:
    return listed(call, _comment(call).reactions, call.show.reaction)


def react(call: Call) -> Answer:
    content = call.given("content")
    if content not in get_args(ReactionContent):
        invalid("content", "invalid")
    known = _comment(call).reactions
    reaction = call.world.react(
        call.repo_name, call.number("comment_id"), call.by, cast(ReactionContent, content)
    )
    return Answer(call.show.reaction(reaction), 200 if reaction in known else 201)


def _comment(call: Call) -> Comment:
    return call.world.comment_by_id(call.repo_name, call.number("comment_id"))


def list_labels(call: Call) -> Answer:
    pull = call.world.pull(call.repo_name, call.number("number"))
    return listed(call, pull.labels, lambda one: call.show.label(call.repo, one))


def add_labels(call: Call) -> Answer:
    names = call.body if isinstance(call.body, list) else call.given("labels", list)
    if not all(isinstance(name, str) and name for name in names):
        invalid("labels", "invalid")
    pull = call.world.add_labels(call.repo_name, call.number("number"), names, call.by)
    return Answer([call.show.label(call.repo, one) for one in pull.labels])


def remove_label(call: Call) -> Answer:
    number, name = call.number("number"), call.params["name"]
    if name not in [one.name for one in call.world.pull(call.repo_name, number).labels]:
        raise Problem(404, "Label does not exist")
    pull = call.world.remove_label(call.repo_name, number, name, call.by)
    return Answer([call.show.label(call.repo, one) for one in pull.labels])


def repo_labels(call: Call) -> Answer:
    labels = call.world.labels(call.repo_name)
    return listed(call, labels, lambda one: call.show.label(call.repo, one))


def get_label(call: Call) -> Answer:
    for label in call.world.labels(call.repo_name):
        if label.name == call.params["name"]:
            return Answer(call.show.label(call.repo, label))
    raise Problem(404, "Not Found")


ROUTES: Final = (
    Route("GET", _COMMENT, get_comment),
    Route("PATCH", _COMMENT, edit_comment, "read"),
    Route("DELETE", _COMMENT, delete_comment, "read"),
    Route("GET", f"{_COMMENT}/reactions", list_reactions),
    Route("POST", f"{_COMMENT}/reactions", react, "read"),
    Route("GET", _ISSUE, get_issue),
    Route("GET", f"{_ISSUE}/comments", list_comments),
    Route("POST", f"{_ISSUE}/comments", create_comment, "read"),
    Route("GET", f"{_ISSUE}/labels", list_labels),
    Route("POST", f"{_ISSUE}/labels", add_labels, "triage"),
    Route("DELETE", f"{_ISSUE}/labels/{{name*}}", remove_label, "triage"),
    Route("GET", f"{_REPO}/labels", repo_labels),
    Route("GET", f"{_REPO}/labels/{{name*}}", get_label),
)
