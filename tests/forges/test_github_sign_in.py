"""A token, or an App that signs in for the installation which has the repository."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.clocks import ManualClock
from tests.forges.github_script import HEAD, REF, REPO, Asked, Play, Reply, played, pull, says
from tests.hook_world import TOKEN
from towline.forges.base import Forge
from towline.forges.delivery_log import ForgeRefused
from towline.forges.github.auth import GitHubApp
from towline.forges.github.forge import GitHubForge
from towline.forges.snapshot import PullRef
from towline_once.errors import Rejected

PULL = f"GET /repos/{REPO}/pulls/7"
MINT = "POST /app/installations/815/access_tokens"


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def app(key: rsa.RSAPrivateKey, tmp_path: Path) -> GitHubApp:
    file = tmp_path / "app.pem"
    form = serialization.PrivateFormat.TraditionalOpenSSL
    none = serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, none))
    return GitHubApp("4711", file)


def installed(play: Play, clock: ManualClock) -> None:
    """The App is installed for octo-org, and each token lasts for an hour."""

    def mint(asked: Asked) -> Reply:
        ends = datetime.fromtimestamp(clock.now_us() / 1e6 + 3600, UTC)
        number = play.github.count(MINT)
        told = {"token": f"ghs_{number}", "expires_at": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return Reply(201, told)

    play.github.on(f"GET /repos/{REPO}/installation", Reply(200, {"id": 815}))
    play.github.on("GET /repos/octo-org/lib/installation", Reply(200, {"id": 815}))
    play.github.on("GET /app", Reply(200, {"slug": "towline"}))
    play.github.on(MINT, mint)
    play.github.on(PULL, Reply(200, pull(state="closed")))
    play.github.on("GET /repos/octo-org/lib/pulls/1", Reply(200, pull(state="closed", number=1)))


def token_of(asked: Asked) -> str:
    return asked.headers["authorization"].removeprefix("Bearer ")


async def test_an_installations_token_is_kept_until_shortly_before_its_end(
    clock: ManualClock, app: GitHubApp, key: rsa.RSAPrivateKey
) -> None:
    """One token for all repositories of an owner; the next one five minutes before it ends."""
    async with played(clock, app=app, graphql=False) as play:
        installed(play, clock)
        for _ in range(2):
            await play.forge.look([REF, PullRef("github", "octo-org/lib", 1)])
        assert (play.github.count(MINT), play.github.count(PULL)) == (1, 2)
        signed = [one for one in play.github.asked if "installation" in one.path]
        assert len(signed) == 2
        for one in signed:
            claims = jwt.decode(token_of(one), key.public_key(), algorithms=["RS256"])
            assert claims["iss"] == "4711"
        clock.advance(3600 - 290)
        await play.forge.look([REF])
        assert play.github.count(MINT) == 2
        used = [token_of(one) for one in play.github.asked if one.path.endswith("/pulls/7")]
        assert used == ["ghs_1", "ghs_1", "ghs_2"]


async def test_a_token_that_was_taken_back_is_replaced_once(
    clock: ManualClock, app: GitHubApp
) -> None:
    """A 401 costs one new token; a second one is a refusal."""
    async with played(clock, app=app, graphql=False) as play:
        installed(play, clock)
        bad = Reply(401, says("Bad credentials"))
        play.github.on(PULL, bad, Reply(200, pull(state="closed")))
        assert set(await play.forge.look([REF])) == {REF}
        play.github.on(PULL, bad)
        with pytest.raises(ForgeRefused, match="does not accept the credentials"):
            await play.forge.look([REF])
        assert play.github.count(MINT) == 3


async def test_an_app_speaks_under_its_own_name(clock: ManualClock, app: GitHubApp) -> None:
    """Its reviews and comments carry its slug, so that it knows its own pull requests."""
    async with played(clock, app=app) as play:
        installed(play, clock)
        play.github.on(PULL, Reply(200, pull(user={"login": "towline[bot]"})))
        assert (await play.forge.approve(REF, HEAD, "")).status == "blocked"
        assert play.github.count("GET /user") == 0


async def test_an_app_that_is_not_installed_is_told_so(clock: ManualClock, app: GitHubApp) -> None:
    """The repository is named in one line."""
    async with played(clock, app=app) as play:
        with pytest.raises(ForgeRefused, match="installation of the App for octo-org/app"):
            await play.forge.look([REF])


async def test_nothing_of_a_token_is_shown(
    clock: ManualClock, app: GitHubApp, caplog: pytest.LogCaptureFixture
) -> None:
    """No error, log line or look at the objects has one."""
    caplog.set_level("DEBUG")
    async with played(clock, app=app, graphql=False) as play:
        installed(play, clock)
        await play.forge.look([REF])
        access: Any = vars(play.forge)["_access"]
        said = [repr(play.forge), repr(access), repr(vars(access)["_tokens"])]
        for reply in (Reply(401, says("Bad credentials")), Reply(500, says("oops")), Reply(404)):
            play.github.on(PULL, reply)
            try:
                await play.forge.merge(REF, HEAD)
            except Exception as error:
                said.append(repr(error))
    assert len(said) == 6
    assert "ghs_" not in "".join(said) + caplog.text


def test_one_way_to_sign_in_is_needed(clock: ManualClock, app: GitHubApp) -> None:
    """Neither a token nor an App, or both, are refused at the start."""
    with pytest.raises(Rejected, match="either a token or an App"):
        GitHubForge("https://api.github.com", clock)
    with pytest.raises(Rejected, match="either a token or an App"):
        GitHubForge("https://api.github.com", clock, token=TOKEN, app=app)


async def test_a_token_that_may_not_ask_who_it_is_is_told(clock: ManualClock) -> None:
    """A workflow's own token is refused by /user; the login is then configured."""
    refused = Reply(403, says("Resource not accessible by integration"))
    async with played(clock) as play:
        play.github.on("GET /user", refused)
        with pytest.raises(ForgeRefused, match="name the login"):
            await play.forge.comment(REF, "text", "m")
    async with played(clock, login="github-actions[bot]") as play:
        play.github.on(f"GET /repos/{REPO}/issues/7/comments", Reply(200, []))
        play.github.on(f"POST /repos/{REPO}/issues/7/comments", Reply(201, {}))
        assert (await play.forge.comment(REF, "text", "m")).status == "done"
        assert play.github.count("GET /user") == 0


async def test_a_closed_door_is_a_refusal_and_no_outage(clock: ManualClock) -> None:
    """A read that the credentials do not allow fails as such, and holds nothing else up."""
    async with played(clock, graphql=False) as play:
        play.github.on(
            PULL, Reply(403, says("Resource protected by organization SAML enforcement"))
        )
        for _ in range(2):
            with pytest.raises(ForgeRefused, match="SAML"):
                await play.forge.look([REF])
        assert len(play.github.asked) == 2


def as_a_forge(client: GitHubForge) -> Forge:
    """That it fits the port is checked by the type checker."""
    return client
