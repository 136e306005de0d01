"""Addresses of servers, what scrapers accept, places in lists, and texts that leave in a bundle."""

from __future__ import annotations

from typing import Final

from tests.fuzz.target import SECRETS, TOKEN, Target, joined, parts_of, refusing, text_of
from towline.config import Settings
from towline.dashboard.work import _moment_and_key
from towline.db import database_for
from towline.doctor.redaction import Redactor, shown_settings
from towline.fix.fixers import llm
from towline.forges import client as api_client
from towline.git.command import scheme_of
from towline.http.probes import figures, is_from_here
from towline.pulls.fleet import BadCursor, _age_of, _place_of
from towline_once.backends import backend_for
from towline_once.errors import Rejected


def servers(data: bytes) -> None:
    """An address that operators write is taken, or refused in a line."""
    text = text_of(data)
    for read in (
        lambda given: api_client.root_of(given, "GitLab"),
        llm._root_of,
        scheme_of,
        database_for,
        backend_for,
    ):
        with refusing(Rejected):
            read(text)


def scrapers(data: bytes) -> None:
    """Whatever a scraper accepts, it gets figures; only this machine's own needs no key."""
    accept, host = (part.decode("latin-1") for part in parts_of(data, 2))
    _, media_type = figures(accept)
    assert media_type.isascii()
    assert not is_from_here(host, ["forwarded"])
    assert not is_from_here(host, []) or "1" in host


def places(data: bytes) -> None:
    """A place in a list of the API or the dashboard reads back as it was written, or is refused."""
    text = text_of(data)
    with refusing(BadCursor):
        repo, number = _place_of(text)
        assert _place_of(f"{repo}#{number}") == (repo, number)
    with refusing(BadCursor):
        since, repo, number = _age_of(text)
        assert _age_of(f"{since}-{repo}#{number}") == (since, repo, number)
    found = _moment_and_key(text)
    assert found is None or _moment_and_key(f"{found[0]} {found[1]}") == found


def redaction(data: bytes) -> None:
    """No secret is left in what leaves the machine, and what is left can be written down."""
    text = data.decode("utf-8", "replace")
    redactor = Redactor(SECRETS)
    for left in (redactor.text(text), str(redactor.data({text: [text, {"a": text}]}))):
        assert not any(secret in left for secret in SECRETS)
    with refusing(Rejected):
        settings = Settings(database_url=f"postgresql://u:{TOKEN}@h/d")
        assert TOKEN not in str(shown_settings(settings))


_URLS: Final = (b"https://", b"http://", b"[", b"]", b"@", b":", b"/", b"xn--", b"%", b"postgresql")
TARGETS: Final = (
    Target("addresses.servers", servers, lambda: [b"https://api.github.com", b"http://[::1]:80/v4",
           b"postgresql://u:p@h:5432/d", b"sqlite:///a.db", b"memory://x", b"redis://h/1",
           b"https://h/o/n.git", b"http://\xff", b"postgres://[x", b"https://h:99999999"],
           (*_URLS, b"sqlite:///", b"redis://", b"#", b"?", b"\xe3\x80\x82", b"\t")),
    Target("web.accept", scrapers, lambda: [
        joined(b"application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4", b"::1"),
        joined(b"application/openmetrics-text; version=2; escaping=allow-utf-8", b"127.0.0.1"),
        joined(b"*/*;q=0.1", b"::ffff:127.0.0.1%eth0")],
        (b"\x1e", b"application/openmetrics-text", b"; version=", b"; escaping=", b",",
         b"text/plain", b"=", b"1.", b"values", b"underscores")),
    Target("web.places", places, lambda: [b"octo-org/app#12", b"1700000000000000-o/n#1",
           b"1700000000000000 key"], (b"#", b"-", b" ", b"9" * 19, b"\xd9\xa3")),
    Target("doctor.redaction", redaction, lambda: [TOKEN.encode(), b"https://u:p@h/x?token=a&b=c",
           b'{"password": "x"}', b"ghp_" + b"a1" * 20], (TOKEN.encode(), b"://", b"@", b"?a=", b"&",
           b"-----BEGIN PRIVATE KEY-----", b"Bearer ", b"eyJ", b"AKIA")),
)  # fmt: skip
