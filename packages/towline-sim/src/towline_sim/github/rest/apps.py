"""The App, its installation, and the tokens it is given; and what is left of the rate limit."""

from __future__ import annotations

from typing import Any, Final

from towline_sim.github.problems import not_found
from towline_sim.github.rest.calls import Answer, Call, Route, listed
from towline_sim.github.shapes import when

_RIGHTS: Final = {
    "actions": "write",
    "checks": "write",
    "contents": "write",
    "issues": "write",
    "metadata": "read",
    "pull_requests": "write",
    "statuses": "write",
}


def get_app(call: Call) -> Answer:
    app = call.world.app(call.door.app.slug)
    return Answer({**call.show.app(app), "installations_count": 1})


def list_installations(call: Call) -> Answer:
    return listed(call, [call.door.app], lambda _: _installation(call))


def get_installation(call: Call) -> Answer:
    if "owner" in call.params:
        call.world.repo(call.repo_name)
    elif call.number("installation_id") != call.door.app.installation_id:
        not_found()
    return Answer(_installation(call))


def new_token(call: Call) -> Answer:
    if call.number("installation_id") != call.door.app.installation_id:
        not_found()
    token, until = call.door.new_token(call.world.now)
    shown = {"token": token, "expires_at": when(until), "permissions": _RIGHTS}
    return Answer({**shown, "repository_selection": "all"}, 201)


def _installation(call: Call) -> dict[str, Any]:
    app = call.world.app(call.door.app.slug)
    since = when(0)
    # GitHub's description wants an account to be a user and an enterprise at once.
    enterprise = {"name": app.owner.login, "slug": app.owner.login}
    enterprise |= {"created_at": since, "updated_at": since}
    url = f"{call.root}/app/installations/{call.door.app.installation_id}"
    return {
        "id": call.door.app.installation_id,
        "account": {**call.show.user(app.owner), **enterprise},
        "repository_selection": "all",
        "access_tokens_url": f"{url}/access_tokens",
        "repositories_url": f"{call.root}/installation/repositories",
        "html_url": f"{call.root}/settings/installations/{call.door.app.installation_id}",
        "app_id": app.id,
        "app_slug": app.slug,
        "target_id": app.owner.id,
        "target_type": "Organization",
        "permissions": _RIGHTS,
        "events": ["check_run", "check_suite", "pull_request", "push"],
        "created_at": since,
        "updated_at": since,
        "single_file_name": None,
        "has_multiple_single_files": False,
        "single_file_paths": [],
        "suspended_at": None,
        "suspended_by": None,
    }


def rate_limit(call: Call) -> Answer:
    return Answer(call.meter.overview(int(call.world.now * 1e6)))


ROUTES: Final = (
    Route("GET", "/app", get_app),
    Route("GET", "/app/installations", list_installations),
    Route("GET", "/app/installations/{installation_id}", get_installation),
    Route("POST", "/app/installations/{installation_id}/access_tokens", new_token),
    Route("GET", "/repos/{owner}/{repo}/installation", get_installation),
    Route("GET", "/rate_limit", rate_limit),
)
"""Those below `/app`, and a repository's installation, are for the App's own token alone."""
