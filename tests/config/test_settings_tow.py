"""Settings of the tow: what they are without a word, what can be said, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from towline import Rejected, config
from towline.app.policy import breaker_limits_of, policy_of, towing_of
from towline.config import Settings
from towline.pulls.budgets import MAX_TRIES
from towline.pulls.signals import DEFAULT_TRIGGERS, Signal, Signals, Trigger
from towline.pulls.staleness import THRESHOLD_SECONDS
from towline_once.coordination.circuit_breaker import Limits


def of_file(folder: Path, text: str, **environment: str) -> Settings:
    file = folder / "towline.toml"
    file.write_text(text, encoding="utf-8")
    return config.load(file, environment)


def of_environment(**variables: str) -> Settings:
    return config.load(environment={f"TOWLINE_{name}": text for name, text in variables.items()})


def test_without_a_word_the_specified_numbers_hold() -> None:
    """Thresholds, budgets, breaker, triggers and signals are those of the specification."""
    loaded = config.load(environment={})
    policy = policy_of(loaded)
    assert policy.general.thresholds == THRESHOLD_SECONDS
    assert policy.general.budgets == MAX_TRIES
    assert policy.general.triggers == DEFAULT_TRIGGERS
    assert policy.general.signals == Signals()
    assert (policy.repos, policy.own_logins, policy.patterns) == ({}, frozenset(), ())
    assert (policy.batch_size, policy.heal_unlisted) == (50, False)
    assert (policy.command_rate_per_minute, policy.command_permission) == (10, "write")
    assert breaker_limits_of(loaded) == Limits(900_000_000, 0.5, 6, 600_000_000)
    assert (loaded.reconciler.every_seconds, loaded.reconciler.observe_only) == (300, False)
    assert towing_of(loaded).authors == frozenset()


WHOLE = r"""
[tow]
authors = ["dependabot[bot]"]
branch_prefixes = ["towline/"]
labels = ["good first issue"]
repos = ["octo-org/app", "group/sub/app"]
vulnerability_pattern = 'SEC-(\d+)'
own_logins = ["towline[bot]"]

[reconciler]
observe_only = true
batch_size = 40
max_parallel = 2
max_actions_per_sweep = 9
verify_seconds = 60
heal_unlisted = true
breaker = { window_seconds = 60, threshold = 0.25, minimum = 2, cooldown_seconds = 30 }

[staleness]
approved = 60

[budgets]
rebuild = 5
close_and_reopen = 0

[signals]
required = ["build", "test*"]
ignored = ["codecov/*"]
policy_checks = ["policy"]
policy_passed = [{ label = "policy:ok" }, { comment_by = "policy-bot", pattern = "all .* met" }]
approved = [{ review_by = "approver-bot" }]
sod = "four eyes"

[triggers]
allowed_hosts = ["hooks.example"]
rebuild = { kind = "jenkins", job = "build/{name}" }
policy = { kind = "label", label = "recheck" }
sod = { kind = "http", url = "https://Hooks.Example/sod?pr={number}" }
merge = { kind = "comment", text = "@merge-bot merge" }

[jenkins]
url = "https://ci.example"
user = "towline"
token = "hunter2"

[commands]
rate_per_minute = 3
permission = "maintain"

[failure_patterns]
transient = ["quota exceeded"]
persistent = ["license denied"]

[repo."octo-org/app"]
observe_only = false
staleness = { created = 30 }
budgets = { rebuild = 1 }
signals = { required = ["only-this"] }
triggers = { rebuild = { kind = "empty_commit" } }
"""


def test_everything_said_is_heard(tmp_path: Path) -> None:
    """Each table of the file ends up in what decisions are made by."""
    loaded = of_file(tmp_path, WHOLE)
    policy, general = policy_of(loaded), policy_of(loaded).general
    assert (general.thresholds["APPROVED"], general.thresholds["CREATED"]) == (60, 300)
    assert (general.budgets["rebuild"], general.budgets["close_and_reopen"]) == (5, 0)
    assert general.signals.required == ("build", "test*")
    passed = general.signals.outcomes["policy_passed"]
    assert passed[0] == Signal(label="policy:ok")
    assert passed[1].pattern is not None
    assert passed[1].pattern.search("All policies MET")
    assert general.signals.outcomes["approved"] == (Signal(review_by="approver-bot"),)
    assert general.signals.sod.search("Four Eyes")
    assert general.signals.build == Signals().build
    assert general.triggers["rebuild"] == Trigger(kind="jenkins", job="build/{name}")
    assert general.triggers["approver"] == DEFAULT_TRIGGERS["approver"]
    assert (policy.max_parallel, policy.batch_size, policy.heal_unlisted) == (2, 40, True)
    assert [(one.kind, one.regex) for one in policy.patterns] == [
        ("persistent", "license denied"),
        ("transient", "quota exceeded"),
    ]
    assert breaker_limits_of(loaded) == Limits(60_000_000, 0.25, 3, 30_000_000)
    found = towing_of(loaded).vulnerability.search("towline/sec-77")
    assert found is not None
    assert found[1] == "77"


def test_a_repository_differs_only_where_it_says_so(tmp_path: Path) -> None:
    """What one repository sets is laid over what holds for all, name by name."""
    policy = policy_of(of_file(tmp_path, WHOLE))
    own, others = policy.of("octo-org/app"), policy.of("octo-org/other")
    assert others == policy.general
    assert (own.observe_only, others.observe_only) == (False, True)
    assert (own.thresholds["CREATED"], own.thresholds["APPROVED"]) == (30, 60)
    assert (own.budgets["rebuild"], own.budgets["close_and_reopen"]) == (1, 0)
    assert own.signals.required == ("only-this",)
    assert own.signals.ignored == ("codecov/*",)
    assert own.signals.outcomes == others.signals.outcomes
    assert own.triggers["rebuild"] == Trigger(kind="empty_commit")
    assert own.triggers["policy"] == others.triggers["policy"]
    assert policy.shortest_thresholds()["CREATED"] == 30


def test_the_environment_says_all_of_it_too() -> None:
    """Names by `__`, lists and tables as JSON; a repository's name stands within JSON."""
    repos = {"octo-org/app": {"staleness": {"merging": 7}}}
    loaded = of_environment(
        TOW__AUTHORS="renovate[bot], dependabot[bot]",
        TOW__LABELS='["good first issue"]',
        STALENESS__CREATED="60",
        TRIGGERS__REBUILD='{"kind": "comment", "text": "again"}',
        TRIGGERS__MERGE__KIND="label",
        TRIGGERS__MERGE__LABEL="automerge",
        SIGNALS__APPROVED='[{"review_by": "approver-bot"}]',
        REPO=json.dumps(repos),
    )
    policy = policy_of(loaded)
    assert towing_of(loaded).authors == {"renovate[bot]", "dependabot[bot]"}
    assert policy.general.thresholds["CREATED"] == 60
    assert policy.of("octo-org/app").thresholds["MERGING"] == 7
    assert policy.general.triggers["rebuild"].text == "again"
    assert policy.general.triggers["merge"] == Trigger(kind="label", label="automerge")
    assert policy.general.signals.outcomes["approved"] == (Signal(review_by="approver-bot"),)


def test_a_table_of_the_environment_lies_over_the_files(tmp_path: Path) -> None:
    """JSON for a table changes what it names, and leaves the rest of the table."""
    over = {"octo-org/app": {"staleness": {"merging": 7}}, "octo-org/new": {"observe_only": True}}
    loaded = of_file(tmp_path, WHOLE, TOWLINE_REPO=json.dumps(over))
    own = loaded.repo["octo-org/app"]
    assert own.staleness is not None
    assert (own.staleness.created, own.staleness.merging) == (30, 7)
    assert (own.observe_only, loaded.repo["octo-org/new"].observe_only) == (False, True)


REFUSED: list[tuple[str, str]] = [
    ("[tow]\nauthers = []", r"unknown setting tow\.authers \(TOWLINE_TOW__AUTHERS\).*authors\?"),
    ("[tow]\nbranch_prefixes = ['']", r"tow\.branch_prefixes\[0\].*at least 1 character"),
    ("[tow]\nrepos = ['app']", r"tow\.repos\[0\] .*OWNER/NAME, not 'app'"),
    ("[tow]\nvulnerability_pattern = '('", "tow.vulnerability_pattern.*not a regular expression"),
    ("[tow]\nvulnerability_pattern = 'x*'", "finds something in every text"),
    ("[reconciler]\nbatch_size = 0", "reconciler.batch_size.*greater than or equal to 1"),
    ("[reconciler]\nbatch_size = 101", "reconciler.batch_size.*less than or equal to 100"),
    ("[reconciler]\nbreaker = { threshold = 2 }", "reconciler.breaker.threshold.*less than or"),
    ("[reconciler]\nbreaker = { treshold = 1 }", r"reconciler\.breaker\.treshold.*threshold\?"),
    ("[reconciler]\nbreaker = 5", "reconciler.breaker .*it is a table"),
    ("[staleness]\ncreated = 0", "staleness.created.*greater than 0"),
    ("[staleness]\ncreated = inf", "staleness.created.*finite"),
    ("[staleness]\nCREATED = 5", "unknown setting staleness.CREATED"),
    ("[staleness]\nmerged = 5", "unknown setting staleness.merged"),
    ("[budgets]\nrebuild = -1", "budgets.rebuild.*greater than or equal to 0"),
    ("[budgets]\nrebuilds = 1", r"did you mean rebuild\?"),
    ("[signals]\napproved = [{}]", r"signals\.approved\[0\].*label, review_by or comment_by"),
    ("[signals]\napproved = [{ pattern = 'x' }]", "needs label, review_by or comment_by"),
    ("[signals]\napproved = [{ label = 'x', pattern = 'x' }]", "needs comment_by"),
    ("[signals]\napproved = [{ reviewed_by = 'x' }]", r"did you mean review_by\?"),
    ("[signals]\nmerging = [{ comment_by = 'x', pattern = '[' }]", r"merging\[0\]\.pattern"),
    ("[triggers]\nrebuild = { kind = 'magic' }", "triggers.rebuild.kind.*'native', 'jenkins'"),
    ("[triggers]\nrebuild = {}", "triggers.rebuild.kind.*field required"),
    ("[triggers]\nmerge = { kind = 'label' }", r"triggers\.merge .*kind label needs label"),
    ("[triggers]\nmerge = { kind = 'native', label = 'x' }", "native has no label; it takes noth"),
    ("[triggers]\nmerge = { kind = 'label', label = 'x', job = 'y' }", "it takes label alone"),
    ("[triggers]\nmerge = { kind = 'jenkins', job = 'x' }", "triggers.merge: .*needs jenkins.url"),
    ("[triggers]\nsod = { kind = 'http', url = 'ftp://x' }", "triggers.sod.url.*http://"),
    ("[triggers]\nsod = { kind = 'http', url = 'https://a.example/' }", "a.example of trigg"),
    ("[triggers]\nsod = { kind = 'http', url = 'https://{name}.example/' }", "only after the host"),
    ("[triggers]\nsod = { kind = 'http', url = 'https://{name}@a.example/' }", "after the host"),
    ("[triggers]\npoliy = { kind = 'native' }", r"did you mean policy\?"),
    ("[jenkins]\nuser = 'x'", "jenkins .*user and token are set both or not at all"),
    ("[jenkins]\nuser = 'x'\ntoken = 'y'", "jenkins .*url, which is not set"),
    ("[jenkins]\nurl = 'ci.example'", "jenkins.url.*http://"),
    ("[gitlab]\napi_url = 'nonsense'", "gitlab.api_url.*http://"),
    ("[commands]\npermission = 'none'", "commands.permission.*'read', 'triage', 'write'"),
    ("[commands]\nrate_per_minute = 0", "commands.rate_per_minute.*greater than"),
    ("[failure_patterns]\ntransient = ['(']", r"failure_patterns\.transient\[0\].*regular expr"),
    ("[repo.app]\nobserve_only = true", r"repo .*OWNER/NAME, not 'app'"),
    ('[repo."o/app"]\nobserve = true', r'unknown setting repo\."o/app"\.observe \(TOWLINE_REPO\)'),
    ('[repo."o/app".staleness]\ncreatd = 1', r'repo\."o/app"\.staleness\.creatd.*created\?'),
    ('[repo."o/app".triggers]\nallowed_hosts = ["x"]', r"triggers\.allowed_hosts.*allowed here"),
    (
        '[repo."o/app".triggers]\nsod = { kind = "http", url = "https://a.example/" }',
        r'a\.example of repo\."o/app"\.triggers\.sod\.url is not in triggers\.allowed_hosts',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "complaint"), REFUSED)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """One line that names the setting and says what is allowed."""
    with pytest.raises(Rejected) as caught:
        of_file(tmp_path, text)
    told = str(caught.value)
    assert re.search(complaint, told), told
    assert "\n" not in told
    assert "value error" not in told.lower()


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("REPO", "{nonsense", "REPO.*not a JSON object"),
        ("REPO", "o/app", "it is a table"),
        ("TRIGGERS__REBUILD", '{"kind": "label"}', "kind label needs label"),
        ("SIGNALS__APPROVED", "[{]", "a list is written as JSON"),
        ("REPO__OCTO__STALENESS__CREATED", "5", "OCTO|octo"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(
    variable: str, text: str, complaint: str
) -> None:
    """The same for JSON that is none, and for names that a variable cannot have."""
    with pytest.raises(Rejected, match=complaint) as caught:
        of_environment(**{variable: text})
    assert "\n" not in str(caught.value)


SECRETS: list[dict[str, Any]] = [
    {"NOTIFY__URLS": '["hunter2-without-a-scheme"]'},
    {"NOTIFY__URLS": '["slack://hunter2", 5]'},
    {"JENKINS__TOKEN": "hunter2"},
    {"TRIGGERS__SOD": '{"kind": "http", "url": "https://user:hunter2@a.example/?t=hunter2"}'},
    {"TRIGGERS__SOD": '{"kind": "label", "url": "https://a.example/?t=hunter2"}'},
    {"API_KEYS__CI__KEY": "hunter2"},
    {"REPO": '{"o/app": "hunter2"'},
    {"GITHUB__TOKEN__X": "hunter2"},
]


@pytest.mark.parametrize("variables", SECRETS)
def test_no_complaint_shows_a_secret(variables: dict[str, str]) -> None:
    """Whatever is wrong around a secret, its text is not in the line."""
    with pytest.raises(Rejected) as caught:
        of_environment(**variables)
    assert "hunter2" not in str(caught.value)


def test_nothing_shows_a_secret() -> None:
    """Settings can be printed and logged."""
    loaded = of_environment(
        DATABASE_URL="postgresql://user:hunter2@db/x",
        REDIS_URL="redis://:hunter2@cache",
        GITHUB__TOKEN="hunter2",
        GITHUB__WEBHOOK_SECRETS="hunter2 and more",
        GITLAB__TOKEN="hunter2",
        JENKINS__URL="https://ci.example",
        JENKINS__USER="towline",
        JENKINS__TOKEN="hunter2",
        MESH__HMAC_KEY="hunter2 and more",
        SERVE__SECRET="hunter2" * 5,
        NOTIFY__URLS="slack://hunter2",
        API_KEYS__CI__KEY="hunter2" * 3,
        TRIGGERS__ALLOWED_HOSTS="a.example",
        TRIGGERS__SOD='{"kind": "http", "url": "https://a.example/?t=hunter2"}',
    )
    assert "hunter2" not in f"{loaded} {loaded!r}"
    assert loaded.notify.urls == ("slack://hunter2",)
