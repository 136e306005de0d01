"""Routes, commands, flags, settings, variables and metrics that the prose names do exist."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.reference_metrics import every_metric
from scripts.reference_settings import every_setting
from tests.deploy.files import complaint_about, is_a_setting
from tests.docs_pages import ROOT, pages, text_of
from towline import config
from towline.app.service import Service
from towline.app.web import apps_of

OURS = [page for page in pages() if not page.startswith("docs/benchmarks/")]
ROUTE = re.compile(r"`(GET|POST|PUT|DELETE) (/[^\s`?]*)")
COMMAND = re.compile(r"(?:^|[`$(]|&& )\s*towline ((?:[a-z]+ ?)+(?:[^`\n#|)&]*))", re.MULTILINE)
ELSEWHERE = ("GET /docs", "GET /app/installations")
"""The page of the API, which the README's session opens; and a route of the simulated GitHub."""
OF_NO_SETTING = {"TOWLINE_TEST_POSTGRES_URL", "TOWLINE_TEST_REDIS_URL", "TOWLINE_CONFIG"}
OF_JOBS = {"TOWLINE_INTENT", "TOWLINE_EVENT", "TOWLINE_PAYLOAD"}
"""What builds and pipelines are given; and `TOWLINE_` itself."""


@functools.cache
def routes() -> frozenset[tuple[str, str]]:
    """Method and path of every route, parameters as `{}`."""
    service = Service(config.Settings(database_url="sqlite:///unused.db"))
    control: Any = apps_of(service)[1]
    described = {
        (method.upper(), path)
        for path, operations in control.openapi()["paths"].items()
        for method in operations
    }
    plain = {
        (method, path)
        for route in control.routes
        if (path := getattr(route, "path", None))
        for method in getattr(route, "methods", None) or ("GET",)
    }
    return frozenset((method, _blank(path)) for method, path in described | plain)


def _blank(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path).rstrip("/") or "/"


def fits(method: str, path: str) -> bool:
    """Whether a route has this path; what stands for a parameter may be a name or an example."""
    wanted = _blank(path).split("/")
    for known_method, known in routes():
        parts = known.split("/")
        alike = all(part in (want, "{}") for part, want in zip(parts, wanted, strict=False))
        if alike and (known_method, len(parts)) == (method, len(wanted)):
            return True
    return method == "POST" and re.fullmatch(r"/webhooks/[\w{}]+(/[\w{}]+)?", path) is not None


@pytest.mark.parametrize("page", OURS)
def test_routes(page: str) -> None:
    """Each `METHOD /path` is a route of the service."""
    named = {(m, p) for m, p in ROUTE.findall(text_of(page)) if "…" not in p}
    unknown = sorted(f"{m} {p}" for m, p in named if not fits(m, p))
    assert [route for route in unknown if route not in ELSEWHERE] == []


@pytest.mark.parametrize("page", OURS)
def test_commands_and_flags(page: str) -> None:
    """Each `towline …` is a command with the flags that it is shown with."""
    complaints = []
    for found in COMMAND.findall(text_of(page)):
        words = re.sub(r"[\[\]]", "", found.split("; ")[0]).split()
        if words[0] in ("serves", "db", "keys", "sim") and len(words) == 1:
            continue
        if complaint := complaint_about(words):
            complaints.append(complaint)
    assert complaints == []


@pytest.mark.parametrize("page", OURS)
def test_variables(page: str) -> None:
    """Each TOWLINE_… is a setting, or what a build is given."""
    named = set(re.findall(r"TOWLINE_[A-Z0-9_]*[A-Z0-9]", text_of(page)))
    unknown = {name for name in named - OF_JOBS - OF_NO_SETTING if not is_a_setting(name)}
    tables = {setting.variable.rsplit("__", 1)[0] for setting in every_setting(config.Settings)}
    assert sorted(unknown - tables - {"TOWLINE_REPO"}) == []


@pytest.mark.parametrize("page", OURS)
def test_settings_by_their_path(page: str) -> None:
    """`table.name` in code is a setting wherever `table` is one."""
    tables = {name for name in config.Settings.model_fields if name not in ("ci", "repo")}
    known = {re.sub(r"\.NAME|\[\]", "", one.path) for one in every_setting(config.Settings)}
    prefixes = {path.rsplit(".", count)[0] for path in known for count in (1, 2)}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_*]+)+)`", text_of(page))
    ours = {name for name in named if name.split(".")[0] in tables and not name.endswith(".py")}
    wrong = {name for name in ours if not name.endswith(".*")} - known - prefixes
    assert sorted(wrong - NOT_SETTINGS) == []


NOT_SETTINGS = {"scheduler.tick", "triggers.allowed_hosts"}


@pytest.mark.parametrize("page", OURS)
def test_metrics(page: str) -> None:
    """Each towline_… in code is a metric, a table of the database, or their beginning."""
    known = {metric.name for metric in every_metric()}
    tables = {"once_documents", "towline_hook_hours", "towline_deliveries"}
    named = set(re.findall(r"`(towline_[a-z0-9_]+)(?:\{[^`]*)?`", text_of(page)))
    assert sorted(named - known - tables) == []


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """Every page is in the menu, and every link and anchor leads somewhere."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_addresses_of_others_are_few_and_known() -> None:
    """No page leads to a host that nobody has looked at."""
    allowed = {
        *("keepachangelog.com", "semver.org", "github.com", "api.github.com", "gitlab.com"),
        *("hooks.slack.com", "HOST", "YOUR-HOST"),
    }
    for page in OURS:
        for host in re.findall(r"https?://(?:[^/\s@`\"']+@)?([\w.-]+)", text_of(page)):
            example = re.search(r"(^|\.)(example|test)(\.com)?$", host)
            assert host in allowed or example or host in ("127.0.0.1", "localhost"), (page, host)
