"""People, repositories, and who may do what in them."""

from __future__ import annotations

from typing import Final

from towline_sim.github.rest.calls import Answer, Call, Route, listed

_REPO: Final = "/repos/{owner}/{repo}"


def get_user(call: Call) -> Answer:
    return Answer(call.show.private_user(call.world.user(call.by)))


def get_other_user(call: Call) -> Answer:
    return Answer(call.show.public_user(call.world.find_user(call.params["login"])))


def get_repo(call: Call) -> Answer:
    return Answer(call.show.full_repo(call.repo))


def list_collaborators(call: Call) -> Answer:
    people = call.world.collaborators(call.repo_name)
    return listed(call, people, lambda one: call.show.collaborator(*one))


def get_permission(call: Call) -> Answer:
    user = call.world.find_user(call.params["login"])
    role = call.world.permission(call.repo_name, user.login)
    return Answer(call.show.permission(user, role))


ROUTES: Final = (
    Route("GET", "/user", get_user),
    Route("GET", "/users/{login}", get_other_user),
    Route("GET", _REPO, get_repo),
    Route("GET", f"{_REPO}/collaborators", list_collaborators),
    Route("GET", f"{_REPO}/collaborators/{{login}}/permission", get_permission),
)
