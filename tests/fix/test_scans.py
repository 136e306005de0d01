"""Reports of scanners: what is the same finding, and what cannot be read."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.fix.fixers.pip_audit_report import needed_versions
from towline.fix.scanners import ScanFinding, bandit_unread, new_findings, read_bandit, read_sarif
from towline.fix.secret_patterns import secrets_in
from towline_once.errors import Rejected

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("results", "errors", "filename", "line_range", "line_number", "runs"),
                    *("locations", "physicalLocation", "region", "message", "fingerprints"),
                    *("dependencies", "vulns", "aliases", "fix_versions", "version", "name"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def finding(code: str, rule: str = "B1") -> ScanFinding:
    return ScanFinding(rule, code, "a.py", 1, "said")


def test_layout_does_not_make_a_finding_new() -> None:
    """Spaces, quotes, parentheses, comments and trailing commas are layout."""
    old = [finding("call(x, 'a', shell=True)")]
    assert new_findings(old, [finding('call(\n    x, "a", shell=True,\n)  # later')]) == ()


def test_code_rule_and_number_make_a_finding_new() -> None:
    """Another call, another rule, and the same once more."""
    old = [finding("call(x)")]
    for after in ([finding("call(y)")], [finding("call(x)", "B2")], [finding("call(x)")] * 2):
        assert len(new_findings(old, after)) == 1


def test_sarif_is_read_as_far_as_it_says_something() -> None:
    """What passed or has no level is no finding; without a snippet file and message tell."""
    results = [
        {"ruleId": "r1", "message": {"text": "bad"}},
        {"rule": {"id": "r2"}, "message": {"text": "worse"}, "partialFingerprints": {"a": "b"}},
        {"ruleId": "r3", "kind": "pass"},
        {"ruleId": "r4", "level": "none"},
    ]
    found = read_sarif(json.dumps({"runs": [{"results": results}]}).encode())
    assert [one.rule for one in found] == ["r1", "r2"]
    assert str(found[0]) == "r1 in : bad"


@given(told=JSON)
def test_any_report_is_read_or_refused(told: object) -> None:
    """Nothing else is raised."""
    raw = json.dumps(told).encode()
    with contextlib.suppress(Rejected):
        read_sarif(raw)
    with contextlib.suppress(Rejected):
        read_bandit(raw, {})
    with contextlib.suppress(Rejected):
        bandit_unread(raw)
    with contextlib.suppress(Rejected):
        needed_versions(raw.decode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"runs": 7}', b'{"results": [7]}'])
def test_what_is_no_report_is_refused(raw: bytes) -> None:
    """A scanner that failed is not one that found nothing."""
    with pytest.raises(Rejected):
        read_sarif(raw)


def test_our_own_patterns_are_quick_on_long_lines() -> None:
    """A line made to be slow is searched all the same, and finds nothing."""
    for text in ("a://" * 3000, "-----BEGIN " * 1000, "xoxb" * 3000, "gh" * 5000):
        assert secrets_in(text) == []
