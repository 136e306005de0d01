"""Hooks of a repository, the App's hook, and the logs of what was delivered to them."""

from __future__ import annotations

from typing import Any, Final

import orjson

from towline_sim.github.entities import Hook
from towline_sim.github.problems import Problem, invalid, not_found
from towline_sim.github.rest.calls import Answer, Call, Route, listed, with_query
from towline_sim.github.shapes import when
from towline_sim.github.webhooks import Delivery, Target, ping_of, target_of

_HOOKS: Final = "/repos/{owner}/{repo}/hooks"
_HOOK: Final = f"{_HOOKS}/{{hook_id}}"
_APP_HOOK: Final = "/app/hook"
_HIDDEN: Final = "********"


def create_hook(call: Call) -> Answer:
    config = call.given("config", dict)
    url = config.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        invalid("url", "custom", "Validation Failed")
    if any(hook.url == url for hook in call.world.hooks(call.repo_name)):
        error = {"resource": "Hook", "code": "custom", "field": "hook"}
        message = "Hook already exists on this repository"
        raise Problem(422, "Validation Failed", [{**error, "message": message}])
    hook = call.world.create_hook(
        call.repo_name,
        url,
        secret=str(config.get("secret", "")),
        events=tuple(call.field("events", list, ["push"])),
        active=call.field("active", bool, True),
        content_type=str(config.get("content_type", "form")),
    )
    shown = _shown(call, hook)
    _ping(call, hook)
    return Answer(shown, 201, {"location": shown["url"]})


def _ping(call: Call, hook: Hook) -> None:
    call.webhooks.ping(hook, ping_of(call.world, call.root, hook.repo, _shown(call, hook)))


def list_hooks(call: Call) -> Answer:
    return listed(call, call.world.hooks(call.repo_name), lambda hook: _shown(call, hook))


def get_hook(call: Call) -> Answer:
    return Answer(_shown(call, _hook(call)))


def delete_hook(call: Call) -> Answer:
    call.world.delete_hook(call.repo_name, _hook(call).id)
    return Answer(status=204)


def ping_hook(call: Call) -> Answer:
    _ping(call, _hook(call))
    return Answer(status=204)


def _hook(call: Call) -> Hook:
    return call.world.hook(call.repo_name, call.number("hook_id"))


def _shown(call: Call, hook: Hook) -> dict[str, Any]:
    """The secret is never shown."""
    url = f"{call.root}/repos/{hook.repo}/hooks/{hook.id}"
    config = {"url": hook.url, "content_type": hook.content_type, "insecure_ssl": "0"}
    last = next((one for one in call.webhooks.log(hook.id) if one.status_code), None)
    return {
        "type": "Repository",
        "id": hook.id,
        "name": "web",
        "active": hook.active,
        "events": list(hook.events),
        "config": config | ({"secret": _HIDDEN} if hook.secret else {}),
        "updated_at": when(hook.updated_at),
        "created_at": when(hook.created_at),
        "url": url,
        "test_url": f"{url}/test",
        "ping_url": f"{url}/pings",
        "deliveries_url": f"{url}/deliveries",
        "last_response": {
            "code": last.status_code if last else None,
            "status": ("active" if last.ok else "failed") if last else "unused",
            "message": _word(last) if last else None,
        },
    }


def _target(call: Call) -> Target:
    """Whose log is asked for: the one hook of the App, or a repository's."""
    if "hook_id" in call.params:
        return target_of(_hook(call), call.repo.id)
    if call.webhooks.app_hook is None:
        not_found()
    return call.webhooks.app_hook


def list_deliveries(call: Call) -> Answer:
    """By cursor, newest first; the link leads to older ones."""
    size = call.query.get("per_page", "30")
    if not size.isdecimal():
        raise Problem(400, "Invalid per_page")
    cursor = call.query.get("cursor", "").removeprefix("v1_")
    if cursor and not cursor.isdecimal():
        raise Problem(400, "Invalid cursor")
    status = call.query.get("status")
    found = [
        one
        for one in call.webhooks.log(_target(call).hook_id)
        if (not cursor or one.id <= int(cursor))
        and (status is None or one.ok == (status == "success"))
    ]
    most = max(1, min(int(size), 100))
    headers = {}
    if len(found) > most:
        headers["link"] = f'<{with_query(call, cursor=f"v1_{found[most].id}")}>; rel="next"'
    return Answer([_item(call, one) for one in found[:most]], headers=headers)


def get_delivery(call: Call) -> Answer:
    delivery = _delivery(call)
    request = {"headers": dict(delivery.headers), "payload": orjson.loads(delivery.body)}
    response = {"headers": {}, "payload": delivery.answer}
    url = _target(call).url
    return Answer({**_item(call, delivery), "url": url, "request": request, "response": response})


def redeliver(call: Call) -> Answer:
    call.webhooks.redeliver(_target(call), _delivery(call))
    return Answer({}, 202)


def _delivery(call: Call) -> Delivery:
    wanted = call.number("delivery_id")
    for one in call.webhooks.log(_target(call).hook_id):
        if one.id == wanted:
            return one
    raise Problem(404, "Not Found")


def _item(call: Call, one: Delivery) -> dict[str, Any]:
    of_app = _target(call).kind == "integration"
    return {
        "id": one.id,
        "guid": one.guid,
        "delivered_at": when(one.delivered_at),
        "redelivery": one.redelivery,
        "duration": one.duration,
        "status": _word(one),
        "status_code": one.status_code,
        "event": one.event,
        "action": one.action,
        "installation_id": call.door.app.installation_id if of_app else None,
        "repository_id": one.repo_id,
        "throttled_at": None,
    }


def _word(delivery: Delivery) -> str:
    if not delivery.status_code:
        return "pending"
    return "OK" if delivery.ok else delivery.answer[:60] or "Invalid HTTP Response"


ROUTES: Final = (
    Route("GET", _HOOKS, list_hooks, "admin"),
    Route("POST", _HOOKS, create_hook, "admin"),
    Route("GET", _HOOK, get_hook, "admin"),
    Route("DELETE", _HOOK, delete_hook, "admin"),
    Route("POST", f"{_HOOK}/pings", ping_hook, "admin"),
    Route("GET", f"{_HOOK}/deliveries", list_deliveries, "admin"),
    Route("GET", f"{_HOOK}/deliveries/{{delivery_id}}", get_delivery, "admin"),
    Route("POST", f"{_HOOK}/deliveries/{{delivery_id}}/attempts", redeliver, "admin"),
    Route("GET", f"{_APP_HOOK}/deliveries", list_deliveries),
    Route("GET", f"{_APP_HOOK}/deliveries/{{delivery_id}}", get_delivery),
    Route("POST", f"{_APP_HOOK}/deliveries/{{delivery_id}}/attempts", redeliver),
)
