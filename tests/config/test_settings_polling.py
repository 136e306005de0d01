"""The pollers' settings, and the pages that tell how to run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.reference_settings import every_setting
from towline import config
from towline.inbox.poll import PollRules
from towline_once.errors import Rejected

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "operations"
TURNED = ("pipeline", "ingest", "worker", "idempotency", "mesh", "reconciler", "polling", "audit")
NOT_TURNED = {
    "ingest.max_body_bytes",
    "ingest.body_timeout_seconds",
    "idempotency.enabled",
    "idempotency.max_attempts",
    "idempotency.max_cached_bytes",
    "mesh.max_body_bytes",
    "mesh.max_lease_seconds",
    "mesh.hmac_key",
    "reconciler.max_stale_per_sweep",
    "worker.metrics_host",
    "worker.metrics_port",
    "polling.gitlab",
    "polling.github",
    "polling.jira.NAME.jql",
    "audit.file",
}


def test_the_defaults() -> None:
    """Nothing is polled unless it is named, and the rules are those of the flow."""
    polling = config.Settings().polling
    assert (polling.gitlab, polling.github, dict(polling.jira)) == ((), (), {})
    rules = PollRules(polling.every_seconds, polling.overlap_seconds, polling.max_pages)
    assert rules == PollRules()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"TOWLINE_POLLING__GITLAB": "octo-org/app"}, "polling.gitlab needs gitlab.token"),
        ({"TOWLINE_POLLING__GITHUB": "octo-org/app"}, "polling.github needs github.token"),
        ({"TOWLINE_POLLING__JIRA__FIXES__JQL": "project = APP"}, "polling.jira needs jira.url"),
        ({"TOWLINE_POLLING__GITLAB": "no-owner"}, "OWNER/NAME"),
        ({"TOWLINE_POLLING__EVERY_SECONDS": "0"}, "EVERY_SECONDS"),
        (
            {
                "TOWLINE_POLLING__GITLAB": "octo-org/app",
                "TOWLINE_GITLAB__TOKEN": "x",
                "TOWLINE_POLLING__OVERLAP_SECONDS": "59",
            },
            "polling.overlap_seconds of at least 60",
        ),
        ({"TOWLINE_POLLING__JIRA__FIXES__JQL": " "}, "JQL is one line"),
        ({"TOWLINE_POLLING__JIRA__FIXES__JQL": "a = b order  by key"}, "leave ORDER BY out"),
    ],
)
def test_what_cannot_be_polled(given: dict[str, str], complaint: str) -> None:
    """The start ends with one line that names it."""
    with pytest.raises(Rejected) as refusal:
        config.load(environment=given)
    assert complaint.lower() in str(refusal.value).lower()
    assert "\n" not in str(refusal.value)


def test_a_token_is_not_shown() -> None:
    """Neither of Jira nor of the others."""
    given = {"TOWLINE_JIRA__URL": "https://jira.example", "TOWLINE_JIRA__TOKEN": "very-secret"}
    assert "very-secret" not in repr(config.load(environment=given))


def test_the_examples_load(tmp_path: Path) -> None:
    """Each TOML block of the pages on polling is accepted as it stands."""
    shown = re.findall(r"```toml\n(.*?)```", (PAGES / "polling.md").read_text(), flags=re.DOTALL)
    assert shown
    for text in shown:
        file = tmp_path / "towline.toml"
        file.write_text(text, encoding="utf-8")
        config.load(file, {})


def test_every_knob_is_on_the_page_of_knobs() -> None:
    """Those that change how much, how often and how long; and none that does not exist."""
    page = (PAGES / "knobs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:\.\*)?`", page))
    known = {one.path for one in every_setting(config.Settings)}
    tables = {name.rpartition(".")[0] for name in known}
    assert named <= known | tables | {"reconciler.breaker"}
    wanted = {
        name for name in known if name.startswith(tuple(f"{table}." for table in TURNED))
    } - NOT_TURNED
    missing = {name for name in wanted - named if not name.startswith(("reconciler.breaker.",))}
    assert not missing
