"""How an App signs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.clocks import ManualClock, WrongHostClock
from tests.hook_log import HookLogSim
from towline.forges.delivery_log import ForgeRefused, app_hook
from towline.forges.github.auth import GitHubApp
from towline.forges.github.delivery_log import GitHubHookLog
from towline_once.errors import Rejected


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def key_file(key: rsa.RSAPrivateKey, tmp_path: Path) -> Path:
    file = tmp_path / "app.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return file


async def test_an_app_signs_in_with_its_key(
    sim: HookLogSim, url: str, clock: ManualClock, key: rsa.RSAPrivateKey, key_file: Path
) -> None:
    """The token is RS256 under the App's key, names the App, and is renewed before it ends."""
    sim.record(sim.add_app_hook("42", 7), "push", {"a": 1}, status_code=502)
    log = GitHubHookLog(url, clock, app=GitHubApp("42", key_file))
    page = await log.page(app_hook("42"))
    recorded = await log.read(app_hook("42"), page.entries[0].id)
    assert recorded.payload == {"a": 1}
    tokens = [asked.headers["authorization"].removeprefix("Bearer ") for asked in sim.asked]
    assert tokens[0] == tokens[1]
    claims = jwt.decode(tokens[0], key.public_key(), algorithms=["RS256"])
    assert claims["iss"] == "42"
    clock.advance(500)
    await log.page(app_hook("42"))
    assert sim.asked[2].status == 304
    assert sim.asked[2].headers["authorization"].removeprefix("Bearer ") not in tokens
    await log.aclose()


async def test_an_app_on_a_wrong_clock_signs_by_the_forges(
    sim: HookLogSim, url: str, key_file: Path
) -> None:
    """The first answer, a refusal, tells the time; the next token is valid."""
    sim.add_app_hook("42", 7)
    log = GitHubHookLog(url, WrongHostClock(), app=GitHubApp("42", key_file))
    with pytest.raises(ForgeRefused):
        await log.page(app_hook("42"))
    assert (await log.page(app_hook("42"))).entries == ()
    await log.aclose()


def test_a_key_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    """A missing file and a file without a key are one line each."""
    with pytest.raises(Rejected, match="cannot read"):
        GitHubApp("42", tmp_path / "absent.pem")
    (tmp_path / "bad.pem").write_text("no key")
    with pytest.raises(Rejected, match="no RSA private key"):
        GitHubApp("42", tmp_path / "bad.pem")


def test_without_the_extra_the_app_says_what_to_install(key_file: Path) -> None:
    """Signing in as an App without PyJWT is one line."""
    program = (
        "import sys, pathlib; sys.modules['jwt'] = None\n"
        "from towline_once.errors import MissingExtra\n"
        "from towline.forges.github.auth import GitHubApp\n"
        "try:\n    GitHubApp('42', pathlib.Path(sys.argv[1]))\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(key_file)], capture_output=True, text=True, check=True
    )
    assert (done.stdout.count("\n"), "towline[app]" in done.stdout) == (1, True)
