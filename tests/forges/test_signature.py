"""Signatures: published vectors, several secrets, windows, and all the ways to be wrong."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.forges.samples import (
    DATA,
    NOW,
    OLD_SECRET,
    SECRET,
    SIGNERS,
    SIGNING_SECRET,
    github_headers,
    gitlab_headers,
    hex_hmac,
    needs_data,
    shared_headers,
    slack_headers,
    standard_webhooks_headers,
)
from towline.forges.delivery import BadSignature, DeliveryRejected, NoSecret, OutsideWindow
from towline.forges.signature import (
    Scheme,
    authenticate,
    check_github,
    check_gitlab,
    check_shared,
    check_slack,
    check_standard_webhooks,
)

BODY = b'{"a": "b"}'
KEY = b"thirty-two bytes of a signing key"


def vectors(part: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / "signatures/vectors.json").read_bytes())[part]
    assert found
    return found


@needs_data
def test_published_vectors_are_valid() -> None:
    """What GitHub, octokit and Slack publish as signed is accepted, and not under other secrets."""
    for vector in vectors("valid"):
        headers = {vector["header"].lower(): vector["signature"]}
        body, secret = vector["body"].encode(), vector["secret"]
        now, scheme = NOW, check_github
        if vector["scheme"] == "slack-v0":
            headers["x-slack-request-timestamp"] = vector["timestamp"]
            now, scheme = float(vector["timestamp"]), check_slack
        scheme(headers, body, [secret], now)
        scheme(headers, body, ["other", secret], now)
        for wrong in [(body, "other"), (body + b" ", secret), (body[:-1], secret)]:
            with pytest.raises(BadSignature):
                scheme(headers, wrong[0], [wrong[1]], now)


@needs_data
def test_published_headers_that_are_invalid() -> None:
    """Empty, cut, unlabelled and wrongly labelled signatures are refused."""
    for vector in vectors("invalid_headers"):
        headers = {"x-hub-signature-256": vector["header_value"]}
        with pytest.raises(BadSignature):
            check_github(headers, b"Hello, World!", ["It's a Secret to Everybody"], NOW)


def test_githubs_own_vector() -> None:
    """GitHub's published example holds, also where the data is absent."""
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": f"sha256={digest}"}
    check_github(headers, b"Hello, World!", ["It's a Secret to Everybody"], NOW)


def test_sha1_alone_is_refused() -> None:
    """GitHub's older header proves nothing, even if it is right."""
    digest = hmac.new(SECRET.encode(), BODY, "sha1").hexdigest()
    with pytest.raises(BadSignature, match="256"):
        check_github({"x-hub-signature": f"sha1={digest}"}, BODY, [SECRET], NOW)


SCHEMES: list[tuple[Scheme, Callable[[str], dict[str, str]]]] = [
    (check_github, lambda secret: github_headers(BODY, secret=secret)),
    (check_slack, lambda secret: slack_headers(BODY, secret=secret)),
    (check_gitlab, lambda secret: gitlab_headers(BODY, token=secret)),
    (check_gitlab, lambda secret: standard_webhooks_headers(BODY, secret.encode())),
    (check_standard_webhooks, lambda secret: standard_webhooks_headers(BODY, secret.encode())),
    (check_shared, lambda secret: shared_headers(BODY, secret=secret)),
    (check_shared, lambda secret: {"x-towline-token": secret}),
    (check_shared, lambda secret: {"authorization": f"Bearer {secret}"}),
    (check_shared, lambda secret: {"authorization": f"bearer  {secret}"}),
    (check_shared, lambda secret: {"authorization": basic(f"jenkins:{secret}")}),
    (check_shared, lambda secret: {"authorization": basic(secret)}),
    (check_shared, lambda secret: {"x-towline-signature": f"sha256={hex_hmac(secret, BODY)}"}),
    (check_shared, lambda secret: {"x-hub-signature-256": f"sha256={hex_hmac(secret, BODY)}"}),
]


def basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


@pytest.mark.parametrize(("scheme", "headers"), SCHEMES)
def test_every_active_secret_works(
    scheme: Scheme, headers: Callable[[str], dict[str, str]]
) -> None:
    """While a secret is being changed, the old and the new one are both good, and no third is."""
    for secret in [OLD_SECRET, SECRET]:
        scheme(headers(secret), BODY, [SECRET, OLD_SECRET], NOW)
    for wrong in ["", "other", SECRET.upper(), SECRET[:-1], f"{SECRET}x", "ä", "\udc80"]:
        with pytest.raises(BadSignature):
            scheme(headers(wrong.replace("\udc80", "?")), BODY, [SECRET, OLD_SECRET], NOW)


@pytest.mark.parametrize("scheme", [check_github, check_slack, check_gitlab, check_shared])
def test_no_headers_at_all(scheme: Scheme) -> None:
    """A request without any sign of a secret is refused."""
    with pytest.raises(BadSignature):
        scheme({}, BODY, [SECRET], NOW)


@pytest.mark.parametrize("scheme", [check_github, check_slack, check_gitlab, check_shared])
def test_without_a_secret_nothing_is_trusted(scheme: Scheme) -> None:
    """No secret, or only empty ones, refuses all, unless unsigned deliveries are asked for."""
    for secrets in [[], [""], ["", ""]]:
        headers = {
            **github_headers(BODY, secret=""),
            **slack_headers(BODY, secret=""),
            **shared_headers(BODY, secret=""),
            "x-gitlab-token": "",
            "authorization": "Bearer ",
        }
        with pytest.raises(NoSecret):
            authenticate(scheme, headers, BODY, secrets, NOW, allow_unsigned=False)
        authenticate(scheme, {}, BODY, secrets, NOW, allow_unsigned=True)


def test_allowing_unsigned_does_not_weaken_a_secret() -> None:
    """Where there is a secret it is asked for, whatever is allowed without one."""
    with pytest.raises(BadSignature):
        authenticate(check_github, {}, BODY, [SECRET], NOW, allow_unsigned=True)


def test_a_lone_text_is_one_secret() -> None:
    """A secret that was not put into a list does not become a list of single letters."""
    authenticate(check_github, github_headers(BODY), BODY, SECRET, NOW, allow_unsigned=False)
    headers = github_headers(BODY, secret=SECRET[0])
    with pytest.raises(BadSignature):
        authenticate(check_github, headers, BODY, SECRET, NOW, allow_unsigned=False)


TIMED: list[tuple[Scheme, Callable[[float], dict[str, str]]]] = [
    (check_slack, lambda at: slack_headers(BODY, at=at)),
    (check_gitlab, lambda at: standard_webhooks_headers(BODY, SECRET.encode(), at=at)),
]


@pytest.mark.parametrize(("scheme", "headers"), TIMED)
def test_window(scheme: Scheme, headers: Callable[[float], dict[str, str]]) -> None:
    """A signature is good for five minutes before and after its time, and no second longer."""
    for seconds in [-300, -1, 0, 299.5, 300]:
        scheme(headers(NOW), BODY, [SECRET], NOW + seconds)
    for seconds in [-301, -1e9, 300.5, 301, 1e9]:
        with pytest.raises(OutsideWindow):
            scheme(headers(NOW), BODY, [SECRET], NOW + seconds)


@pytest.mark.parametrize("text", ["", "now", "-1", "1_0", "1.5", "١٢٣", "²", " 1", "9" * 16])
@pytest.mark.parametrize("name", ["x-slack-request-timestamp", "webhook-timestamp"])
def test_timestamps_are_plain_numbers(text: str, name: str) -> None:
    """What Python alone would take for a number is not a timestamp, though it be well signed."""
    signed = f"v0:{text}:" if "slack" in name else f"id.{text}."
    digest = hmac.new(SECRET.encode(), signed.encode() + BODY, "sha256")
    headers = {
        name: text,
        "webhook-id": "id",
        "webhook-signature": f"v1,{base64.b64encode(digest.digest()).decode()}",
        "x-slack-signature": f"v0={digest.hexdigest()}",
    }
    scheme = check_slack if "slack" in name else check_standard_webhooks
    with pytest.raises(BadSignature, match="number of seconds"):
        scheme(headers, BODY, [SECRET], NOW)


def test_a_window_does_not_help_the_wrong_secret() -> None:
    """A forged delivery is told as such, in and out of the window."""
    for at in [NOW, NOW - 1000]:
        with pytest.raises(BadSignature) as refused:
            check_slack(slack_headers(BODY, secret="other", at=at), BODY, [SECRET], NOW)
        assert not isinstance(refused.value, OutsideWindow)


@pytest.mark.parametrize(
    "secret",
    [SIGNING_SECRET, SIGNING_SECRET.removeprefix("whsec_"), SIGNING_SECRET.rstrip("=")],
)
def test_signing_secrets_are_base64(secret: str) -> None:
    """With or without its prefix and its padding, a signing secret stands for its bytes."""
    check_gitlab(standard_webhooks_headers(BODY, KEY), BODY, [secret], NOW)


def test_one_of_several_signatures_is_enough() -> None:
    """A sender that changes its key signs with both, in one header."""
    headers = standard_webhooks_headers(BODY, KEY)
    ours = headers["webhook-signature"]
    for several in [f"v1,AAAA {ours}", f"{ours} v1a,{ours[3:]}", f"v2,x  {ours}"]:
        check_gitlab({**headers, "webhook-signature": several}, BODY, [SIGNING_SECRET], NOW)
    for wrong in [ours[3:], f"v2,{ours[3:]}", ours.replace("v1,", "v1"), ours + "A", ""]:
        with pytest.raises(BadSignature):
            check_gitlab({**headers, "webhook-signature": wrong}, BODY, [SIGNING_SECRET], NOW)


def test_standard_webhooks_signs_the_id_and_the_time() -> None:
    """Another id, another time or another body breaks the signature."""
    headers = standard_webhooks_headers(BODY, KEY)
    for change in [{"webhook-id": "msg_2"}, {"webhook-timestamp": str(int(NOW) + 1)}]:
        with pytest.raises(BadSignature):
            check_gitlab({**headers, **change}, BODY, [SIGNING_SECRET], NOW)
    with pytest.raises(BadSignature):
        check_gitlab(headers, BODY + b" ", [SIGNING_SECRET], NOW)
    nameless = standard_webhooks_headers(BODY, KEY, message_id="")
    with pytest.raises(BadSignature):
        check_gitlab(nameless, BODY, [SIGNING_SECRET], NOW)


def test_gitlab_signature_beats_token() -> None:
    """With a signing secret configured, a right token does not save a wrong signature."""
    headers = standard_webhooks_headers(BODY, b"wrong") | gitlab_headers(BODY)
    with pytest.raises(BadSignature):
        check_gitlab(headers, BODY, [SIGNING_SECRET, SECRET], NOW)
    check_gitlab(headers, BODY, [SECRET], NOW)
    check_gitlab(gitlab_headers(BODY), BODY, [SIGNING_SECRET, SECRET], NOW)


def test_a_signing_secret_is_not_a_token() -> None:
    """A secret for signing is never accepted in plain text, nor one that stands for no bytes."""
    with pytest.raises(BadSignature):
        check_gitlab(gitlab_headers(BODY, token=SIGNING_SECRET), BODY, [SIGNING_SECRET], NOW)
    for empty in ["whsec_", "whsec_!"]:
        with pytest.raises(BadSignature):
            check_gitlab(standard_webhooks_headers(BODY, b""), BODY, [empty], NOW)


def test_a_wrong_signature_is_not_saved_by_a_token() -> None:
    """Who signs is judged by the signature, also if the plain secret comes along."""
    headers = shared_headers(BODY, secret="other") | {"authorization": f"Bearer {SECRET}"}
    with pytest.raises(BadSignature):
        check_shared(headers, BODY, [SECRET], NOW)


@pytest.mark.parametrize("value", ["Basic", "Basic !!", "Basic \udc80", "Bearer", "Digest x", " "])
def test_odd_authorization(value: str) -> None:
    """Whatever stands in Authorization is refused, not stumbled over."""
    with pytest.raises(BadSignature):
        check_shared({"authorization": value}, BODY, [SECRET], NOW)


def test_every_rejection_has_a_status_and_a_code() -> None:
    """The HTTP layer can answer each rejection without knowing it; none names the secret."""
    found = [BadSignature, NoSecret, OutsideWindow]
    assert [(one.status, one.code) for one in found] == [
        (401, "bad_signature"),
        (401, "no_secret"),
        (401, "outside_window"),
    ]
    for sign in SIGNERS.values():
        with pytest.raises(DeliveryRejected) as refused:
            check_shared(sign(BODY + b"x"), BODY, [SECRET], NOW)
        assert SECRET not in str(refused.value)
