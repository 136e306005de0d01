"""`towline doctor` and GitHub: credentials, rights, hooks and their deliveries, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.doctor_runs import Ran, examined
from tests.hook_world import served
from tests.servers import free_port
from tests.sim.github_server import TOKEN
from towline_once.asgi.messages import answer, json_messages
from towline_once.clock import SystemClock
from towline_sim.github.limits import Limits
from towline_sim.github.server import GitHubSim
from towline_sim.github.world import World

REPO = "demo/app"
Wrap = Callable[[Any], Any]


def with_header(name: bytes, value: bytes) -> Wrap:
    """The forge, with one header more in each answer, or another one in its place."""

    def wrapped(app: Any) -> Any:
        async def told(scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    others = [one for one in message["headers"] if one[0].lower() != name]
                    message = {**message, "headers": [*others, (name, value)]}
                await send(message)

            await app(scope, receive, sending)

        return told

    return wrapped


@asynccontextmanager
async def github(wrap: Wrap = lambda app: app) -> AsyncIterator[tuple[World, dict[str, str]]]:
    clock = SystemClock()
    world = World(clock.now_us() / 1e6)
    world.create_repo(REPO, {"README.md": b"# app\n"})
    sim = GitHubSim(world, clock, TOKEN, limits=Limits.none())
    try:
        async with served(wrap(sim)) as url:
            yield (
                world,
                {
                    "TOWLINE_GITHUB__API_URL": url,
                    "TOWLINE_GITHUB__TOKEN": TOKEN,
                    "TOWLINE_GITHUB__WEBHOOK_SECRETS": "a-secret-of-the-hook",
                    "TOWLINE_TOW__REPOS": REPO,
                },
            )
    finally:
        await sim.aclose()


def told(ran: Ran, check: str) -> str:
    return " | ".join(f"{one['verdict']}: {one['found']}" for one in ran.findings(check))


async def test_a_token_that_opens_the_repository(tmp_path: Path) -> None:
    """Whose it is, what it may do there and the clock are told; a missing hook is a warning."""
    async with github() as (_, environment):
        ran = await examined(tmp_path, **environment)
    assert ran.code == 0, ran.out
    assert "GitHub takes the token of" in told(ran, "github")
    assert f"ok: {REPO} can be read and written to" in told(ran, "github")
    assert "ok: this machine and GitHub agree" in told(ran, "clock")
    assert f"warning: {REPO} has no hook that ends in /webhooks/github" in told(ran, "webhooks")
    assert TOKEN not in ran.out


async def test_a_wrong_token(tmp_path: Path) -> None:
    """It fails, says what to set, and does not show the token."""
    async with github() as (_, environment):
        environment["TOWLINE_GITHUB__TOKEN"] = "ghp_wrong_token_of_nobody"
        ran = await examined(tmp_path, **environment)
    (found,) = ran.findings("github")
    assert (ran.code, found["verdict"]) == (1, "failure")
    assert "401" in found["found"]
    assert "TOWLINE_GITHUB__TOKEN" in found["fix"]
    assert "ghp_wrong" not in ran.out


@pytest.mark.parametrize(
    ("scopes", "verdict"), [(b"read:org", "failure"), (b"repo, workflow", "ok"), (b"", "failure")]
)
async def test_the_scopes_of_a_classic_token(tmp_path: Path, scopes: bytes, verdict: str) -> None:
    """Without `repo` nothing can be healed, and the fix names it."""
    async with github(with_header(b"x-oauth-scopes", scopes)) as (_, environment):
        ran = await examined(tmp_path, **environment)
    first = ran.findings("github")[0]
    assert first["verdict"] == verdict
    assert ("scope repo" in first["fix"]) == (verdict == "failure")


async def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    """Two years between this machine and GitHub are a failure with a fix."""
    wrap = with_header(b"date", b"Mon, 01 Jan 2024 00:00:00 GMT")
    async with github(wrap) as (_, environment):
        ran = await examined(tmp_path, **environment)
    (clock,) = ran.findings("clock")
    assert (ran.code, clock["verdict"]) == (1, "failure")
    assert "NTP" in clock["fix"]


async def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    """It is named, and the other one is looked at all the same."""
    async with github() as (_, environment):
        environment["TOWLINE_TOW__REPOS"] = f"demo/none {REPO}"
        ran = await examined(tmp_path, **environment)
    assert ran.code == 1
    assert "failure: demo/none is not there" in told(ran, "github")
    assert f"ok: {REPO} can be" in told(ran, "github")


async def test_a_hook_with_every_fault(tmp_path: Path) -> None:
    """Switched off, without a secret, with few events: each is told; so is a hook that is gone."""
    async with github() as (world, environment):
        url = f"http://127.0.0.1:{free_port()}/webhooks/github"
        world.create_hook(REPO, url, secret="", events=("push",), active=False)
        environment["TOWLINE_GITHUB__HOOKS"] = f"{REPO}:99999"
        ran = await examined(tmp_path, **environment)
    assert ran.code == 1
    found = told(ran, "webhooks")
    for expected in (
        "is switched off",
        "has no secret",
        "does not send check_run",
        "has delivered nothing yet",
        "github.hooks names hook 99999",
    ):
        assert expected in found, expected


async def test_hooks_that_point_elsewhere(tmp_path: Path) -> None:
    """They are named, as they may be meant for us, without what their addresses hide."""
    async with github() as (world, environment):
        world.create_hook(REPO, "https://u:hunter2@ci.example/ghprbhook/?token=hunter2", secret="s")
        ran = await examined(tmp_path, **environment)
    (found,) = [one for one in ran.findings("webhooks") if "has no hook" in one["found"]]
    assert (ran.code, found["verdict"]) == (0, "warning")
    assert "its hooks point to https://ci.example/ghprbhook/" in found["found"]
    assert "https://YOUR-HOST/webhooks/github" in found["fix"]
    assert "hunter2" not in ran.out


async def test_a_hook_to_another_installation(tmp_path: Path) -> None:
    """Its deliveries are taken, but not here: nothing else tells two installations apart."""
    async with github() as (_, environment), served(takes_all) as other:
        await deliver_a_ping(environment, f"{other}/webhooks/github")
        ran = await examined(tmp_path, **environment)
    found = told(ran, "webhooks")
    assert "1 of the last 1 deliveries were taken, but none of them is in this database" in found
    (one,) = [one for one in ran.findings("webhooks") if "none of them" in one["found"]]
    assert (one["verdict"], "point the hook at this" in one["fix"]) == ("warning", True)


async def takes_all(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await answer(send, json_messages(202, {"status": "accepted"}))


async def deliver_a_ping(environment: dict[str, str], to: str) -> None:
    """As the page of a repository's settings does, until the delivery is in the log."""
    signed = {"authorization": f"Bearer {TOKEN}"}
    root = environment["TOWLINE_GITHUB__API_URL"]
    async with httpx2.AsyncClient(base_url=root, headers=signed, timeout=30) as client:
        config = {"url": to, "content_type": "json", "secret": "a-secret-of-the-hook"}
        made = await client.post(
            f"/repos/{REPO}/hooks", json={"config": config, "events": ["*"], "active": True}
        )
        log = f"/repos/{REPO}/hooks/{made.json()['id']}/deliveries"
        for _ in range(600):
            if any(one["status_code"] for one in (await client.get(log)).json()):
                return
            await asyncio.sleep(0.1)
    pytest.fail("the ping never got into the log")


def with_answer(path: str, told: object) -> Wrap:
    """The forge, with one more question that it answers."""

    def wrapped(app: Any) -> Any:
        async def answering(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") == path:
                await answer(send, json_messages(200, told))
            else:
                await app(scope, receive, send)

        return answering

    return wrapped


def app_of(world: World, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "app.pem").write_bytes(text)
    signed = {name: text for name, text in environment.items() if not name.endswith("__TOKEN")}
    return signed | {
        "TOWLINE_GITHUB__APP_ID": str(world.app("towline").id),
        "TOWLINE_GITHUB__APP_KEY_FILE": str(folder / "app.pem"),
    }


async def test_an_app_and_its_installation(tmp_path: Path) -> None:
    """The App is known by its key; its rights on the repository are those of the installation."""
    async with github() as (world, environment):
        ran = await examined(tmp_path, **app_of(world, tmp_path, environment))
    assert "ok: GitHub takes the App towline" in told(ran, "github"), ran.out
    assert f"ok: the App is installed on {REPO}" in told(ran, "github")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://ci.example/hook", ["failure: the App's hook points elsewhere: https://ci.exam"]),
        ("", ["failure: the App's hook points elsewhere: nowhere"]),
        (
            "https://towline.example/webhooks/github",
            [
                "failure: the App's hook has no secret",
                "warning: the App's hook does not send issue_comment, pull_request_review, status",
            ],
        ),
    ],
    ids=["elsewhere", "nowhere", "here"],
)
async def test_the_hook_of_an_app(tmp_path: Path, url: str, expected: list[str]) -> None:
    """One that points elsewhere fails; one that points here is looked at like any other."""
    config = {"content_type": "json", "insecure_ssl": "0", "url": url}
    async with github(with_answer("/app/hook/config", config)) as (world, environment):
        ran = await examined(tmp_path, **app_of(world, tmp_path, environment))
    found = told(ran, "webhooks")
    assert all(one in found for one in expected), found
    assert ran.code == 1
