"""API keys: from the settings and from the store, with their scopes, revoked and unreachable."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator

import pytest

from tests.app.control_plane import GIVEN, KEY, READ_ONLY, SECRET, Plane, plane_on
from tests.clocks import ManualClock
from tests.servers import free_port
from towline import Rejected
from towline.db import database_for
from towline.http.auth import KEPT_SECONDS, Keyring, make_key
from towline.http.key_attempts import Proxies
from towline.http.key_store import NewKey, SqlApiKeys
from towline.http.key_text import SCOPES, compose
from towline.http.signing import SigningSecret
from towline_once.asgi.messages import Headers, Problem


@pytest.fixture
async def plane(sql_url: str) -> AsyncIterator[Plane]:
    """Each SQL backend in turn."""
    async with plane_on(sql_url) as opened:
        yield opened


@pytest.fixture
async def local(sqlite_url: str) -> AsyncIterator[Plane]:
    """A store for what does not depend on it."""
    async with plane_on(sqlite_url) as opened:
        yield opened


def bearer(text: str) -> Headers:
    return [(b"host", b"x"), (b"authorization", b"Bearer " + text.encode())]


async def refusal(keyring: Keyring, headers: Headers, scope: str = "read") -> Problem:
    with pytest.raises(Problem) as caught:
        await keyring.check(headers, scope)
    return caught.value


async def test_a_made_key_opens_what_its_scopes_say(plane: Plane) -> None:
    """A key of the store does what it is for and nothing else, in either header."""
    made = await make_key(plane.keys, "ci", ["work", "submit", "work"], SECRET)
    assert re.fullmatch(r"tow_[a-z0-9]{8}_[A-Za-z0-9_-]{32,}", made.text)
    principal = await plane.keyring.check(bearer(made.text), "submit")
    assert (principal.id, principal.name) == (made.prefix, "ci")
    assert principal.scopes == {"submit", "work"}
    header = [(b"x-api-key", made.text.encode())]
    assert await plane.keyring.check(header, "work") == principal
    refused = await refusal(plane.keyring, header, "admin")
    assert (refused.status, refused.members["code"]) == (403, "forbidden")


async def test_the_store_has_only_the_hash(plane: Plane) -> None:
    """Neither a key nor its SHA-256 is in the database: a digest under a secret that is not."""
    made = await make_key(plane.keys, "", ["read"], SECRET)
    (stored,) = await plane.keys.listing()
    assert re.fullmatch(rf"v2:{SECRET.fingerprint}:[0-9a-f]{{64}}", stored.digest)
    assert hashlib.sha256(made.text.encode()).hexdigest() not in stored.digest
    assert made.text.rpartition(f"{made.prefix}_")[2] not in repr(stored)


async def test_admin_may_do_everything(local: Plane) -> None:
    """The scope `admin` has all others in it."""
    for scope in SCOPES:
        assert (await local.keyring.check(bearer(KEY), scope)).id == "settings:operator"


async def test_keys_of_the_settings(local: Plane) -> None:
    """Any text that the settings name is a key, with just the scopes given there."""
    assert (await local.keyring.check(bearer(READ_ONLY), "read")).name == "viewer"
    assert (await refusal(local.keyring, bearer(READ_ONLY), "command")).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", b"Bearer \xff\x00\xfe")],
        [(b"x-api-key", b"")],
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        bearer(compose("abcdefgh", "x" * 43)),
        bearer("tow_abcdefgh_" + "é" * 40),
        [(b"x-api-key", KEY.encode()), (b"authorization", b"Bearer " + READ_ONLY.encode())],
    ],
    ids=range(11),
)
async def test_what_is_no_key_is_refused(local: Plane, headers: Headers) -> None:
    """Missing, mangled, unknown and contradictory keys are a 401 that asks for one."""
    refused = await refusal(local.keyring, headers)
    assert (refused.status, refused.members["code"]) == (401, "unauthorized")
    assert (b"www-authenticate", b"Bearer") in refused.headers


async def test_the_right_prefix_with_another_secret_is_refused(plane: Plane) -> None:
    """To know the prefix, which logs show, is of no use."""
    made = await make_key(plane.keys, "", ["admin"], SECRET)
    guess = compose(made.prefix, "x" * 43)
    assert (await refusal(plane.keyring, bearer(guess))).status == 401
    assert await plane.keyring.check(bearer(made.text), "admin")


async def test_a_revoked_key_ends_within_seconds(plane: Plane) -> None:
    """What was looked up is used again for a while, and not a moment longer."""
    made = await make_key(plane.keys, "", ["read"], SECRET)
    await plane.keyring.check(bearer(made.text), "read")
    revoked = await plane.keys.revoke(made.prefix)
    assert revoked is not None
    plane.clock.advance(KEPT_SECONDS - 1)
    await plane.keyring.check(bearer(made.text), "read")
    plane.clock.advance(1)
    assert (await refusal(plane.keyring, bearer(made.text))).status == 401
    assert await plane.keys.revoke(made.prefix) == revoked
    assert await plane.keys.revoke("nosuchkey") is None


async def test_a_flood_of_made_up_keys_does_not_fill_the_memory(local: Plane) -> None:
    """Only so many lookups are remembered: older ones are made again."""
    made = await make_key(local.keys, "", ["read"], SECRET)
    await local.keyring.check(bearer(made.text), "read")
    await local.keys.revoke(made.prefix)
    made_up = [bearer(compose(f"{number:08}", "x" * 43)) for number in range(1024)]
    await asyncio.gather(*(refusal(local.keyring, headers) for headers in made_up))
    with pytest.raises(Problem) as caught:
        await local.keyring.check(bearer(made.text), "read", "192.0.2.1")
    assert caught.value.status == 401


async def test_logs_show_prefixes_only(local: Plane, caplog: pytest.LogCaptureFixture) -> None:
    """A refused key leaves its prefix in the log, and nothing that opens anything."""
    caplog.set_level(logging.DEBUG)
    made = await make_key(local.keys, "", ["read"], SECRET)
    guess = compose(made.prefix, "guessed_" * 5)
    await refusal(local.keyring, bearer(made.text), "admin")
    await refusal(local.keyring, bearer(guess))
    await refusal(local.keyring, bearer(KEY + "x"))
    assert caplog.text.count(made.prefix) == 2
    assert not any(text in caplog.text for text in (made.text, "guessed_", KEY))


async def test_a_key_of_an_earlier_version_is_sealed_when_used(plane: Plane) -> None:
    """A plain SHA-256 goes on working; the first right use replaces it, a wrong one does not."""
    text = compose("abcdefgh", "x" * 43)
    plain = hashlib.sha256(text.encode()).hexdigest()
    assert await plane.keys.add(NewKey("abcdefgh", plain, "old", ("read",)))
    await refusal(plane.keyring, bearer(text[:-1] + "y"))
    assert (await plane.keys.listing())[0].digest == plain
    assert (await plane.keyring.check(bearer(text), "read")).name == "old"
    (stored,) = await plane.keys.listing()
    assert stored.digest.startswith(f"v2:{SECRET.fingerprint}:")
    assert (await plane.keyring.check(bearer(text), "read")).name == "old"
    fresh = Keyring(plane.keys, plane.clock, {}, lambda: SECRET)
    assert (await fresh.check(bearer(text), "read")).name == "old"


async def test_a_key_of_another_secret_is_named_in_the_log(
    local: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be checked, and the log says why and what to set."""
    other = SigningSecret(b"another secret, of another machine", "that of elsewhere")
    made = await make_key(local.keys, "", ["read"], SECRET)
    elsewhere = Keyring(local.keys, local.clock, {}, lambda: other)
    assert (await refusal(elsewhere, bearer(made.text))).status == 401
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert f"key {made.prefix} was made under another secret" in said
    assert "serve.secret (TOWLINE_SERVE__SECRET)" in said
    assert await local.keyring.check(bearer(made.text), "read")


WRONG = [bearer(compose(f"{number:08}", "x" * 43)) for number in range(40)]


async def test_wrong_keys_from_one_address_are_slowed(plane: Plane) -> None:
    """After ten in a minute 429 says how long to wait; a right key from there still passes."""
    made = await make_key(plane.keys, "", ["read"], SECRET)
    refused = [await refusal(plane.keyring, headers) for headers in WRONG]
    assert [one.status for one in refused] == [401] * 10 + [429] * 30
    assert refused[-1].members["code"] == "too_many_attempts"
    assert 1 <= int(dict(refused[-1].headers)[b"retry-after"]) <= 60
    assert await plane.keyring.check(bearer(made.text), "read")
    assert await plane.keyring.check(bearer(KEY), "read")
    plane.clock.advance(61)
    assert (await refusal(plane.keyring, WRONG[0])).status == 401


@pytest.mark.parametrize("of_settings", [True, False])
async def test_guesses_at_one_key_stop_being_compared(local: Plane, of_settings: bool) -> None:
    """Where a key was guessed at, even the right one waits; from another address it passes."""
    text = KEY if of_settings else (await make_key(local.keys, "", ["read"], SECRET)).text
    for _ in range(10):
        with pytest.raises(Problem):
            await local.keyring.check(bearer(f"{text[:-1]}~"[:13] + "x" * 43), "read", "192.0.2.1")
    with pytest.raises(Problem) as caught:
        await local.keyring.check(bearer(text), "read", "192.0.2.1")
    assert caught.value.status == 429
    assert await local.keyring.check(bearer(text), "read", "192.0.2.2")
    local.clock.advance(61)
    assert await local.keyring.check(bearer(text), "read", "192.0.2.1")


async def test_a_network_of_ipv6_is_one_guesser(local: Plane) -> None:
    """An address from the same 64 bits is no new start."""
    for number in range(10):
        with pytest.raises(Problem):
            await local.keyring.check(WRONG[number], "read", f"2001:db8::{number:x}")
    with pytest.raises(Problem) as caught:
        await local.keyring.check(WRONG[11], "read", "2001:db8::ffff")
    assert caught.value.status == 429


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.1, 203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.1", "203.0.113.9:4711"], "203.0.113.9"),
        ("127.0.0.1", ["203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        ("127.0.0.1", ["[2001:db8::1]:80"], "2001:db8::1"),
        ("::ffff:127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["unknown"], "127.0.0.1"),
        ("127.0.0.1", [""], "127.0.0.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),
        (None, ["203.0.113.9"], ""),
    ],
)
def test_only_a_trusted_proxy_names_the_client(
    peer: str | None, forwarded: list[str], client: str
) -> None:
    """The nearest hop that is no proxy of ours counts; what a client writes itself does not."""
    proxies = Proxies(["127.0.0.0/8", "10.0.0.0/8"])
    headers = [(b"x-forwarded-for", text.encode()) for text in forwarded]
    assert proxies.client_of(headers, peer) == client


async def test_without_the_store_it_is_a_503() -> None:
    """A key that cannot be looked up is no wrong key; those of the settings still work."""
    clock = ManualClock()
    database = database_for(f"postgresql://nobody@127.0.0.1:{free_port()}/none", clock, 1.0)
    keyring = Keyring(SqlApiKeys(database), clock, GIVEN, lambda: SECRET)
    refused = await refusal(keyring, bearer(compose("abcdefgh", "x" * 43)))
    assert (refused.status, refused.members["code"]) == (503, "store_unavailable")
    assert any(name == b"retry-after" for name, _ in refused.headers)
    assert await keyring.check(bearer(KEY), "read")
    await database.aclose()


async def test_the_first_start_makes_one_key(plane: Plane) -> None:
    """However many processes start at once, one key is made, and it may do everything."""
    rings = [Keyring(plane.keys, plane.clock, {}, lambda: SECRET) for _ in range(8)]
    texts = [text for text in await asyncio.gather(*(ring.ensure_one() for ring in rings)) if text]
    assert len(texts) == len(await plane.keys.listing()) == 1
    principal = await rings[0].check(bearer(texts[0]), "command")
    assert principal.scopes == {"admin"}
    assert await rings[0].ensure_one() is None
    await plane.keys.revoke(principal.id)
    assert await rings[0].ensure_one() is not None


async def test_a_key_in_the_settings_is_enough(local: Plane) -> None:
    """Where the settings have a key, the first start makes none."""
    assert await local.keyring.ensure_one() is None
    assert await local.keys.listing() == []


@pytest.mark.parametrize(
    ("name", "scopes"), [("", []), ("", ["root"]), ("x" * 101, ["read"]), ("a\nb", ["read"])]
)
async def test_bad_names_and_scopes_are_rejected(
    local: Plane, name: str, scopes: list[str]
) -> None:
    """A key has known scopes and a name that fits on a line."""
    with pytest.raises(Rejected):
        await make_key(local.keys, name, scopes, SECRET)
    assert await local.keys.listing() == []


async def test_an_answer_that_was_lost_is_not_a_second_key(plane: Plane) -> None:
    """The same key added again counts as added; another one with its prefix does not."""
    await make_key(plane.keys, "", ["read"], SECRET)
    (stored,) = await plane.keys.listing()
    again = NewKey(*stored[:4])
    assert await plane.keys.add(again)
    assert await plane.keys.add_first(again)
    assert not await plane.keys.add(NewKey(stored.prefix, "other", "", ("read",)))
    assert await plane.keys.listing() == [stored]
