"""What the operations pages name can be done: routes, commands, settings and metrics exist."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

import towline.app.web  # noqa: F401  so that every metric is there
from scripts import reference, reference_settings
from towline import config
from towline.app.service import Service
from towline.app.web import apps_of

PAGES = Path(__file__).parents[1] / "docs/operations"
ROUTE = re.compile(r"\b(GET|POST) (?:\$API)?(/(?:api|mesh|webhooks)/[^\s`?\"]*)")
POSTED = re.compile(r"-X (POST) .*\$API(/api/\S+)")
PART = re.compile(r"\{[^}]*\}|\$[A-Z_]+")


def text_of(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def all_pages() -> list[str]:
    return sorted(file.name for file in PAGES.glob("*.md") if file.name != "deploy.md")


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    place = tmp_path_factory.mktemp("routes") / "towline.db"
    served = Service(config.Settings(database_url=f"sqlite:///{place}"))
    app: Any = apps_of(served)[1]
    told = app.openapi() if hasattr(app, "openapi") else app.control.openapi()
    return {
        (method.upper(), PART.sub("{}", path))
        for path, methods in told["paths"].items()
        for method in methods
    }


@pytest.mark.parametrize("page", all_pages())
def test_every_route_is_there(page: str, routes: set[tuple[str, str]]) -> None:
    """With its method; what stands for a part may have any name."""
    text = text_of(page)
    named = [*ROUTE.findall(text), *POSTED.findall(text)]
    missing = [(m, p) for m, p in named if (m, PART.sub("{}", p).rstrip(".,;:")) not in routes]
    assert missing == []
    assert named or page not in ("unblock.md", "playbook.md", "fix-pipeline.md")


@pytest.mark.parametrize("page", all_pages())
def test_every_command_is_there(page: str) -> None:
    """As it is typed, up to its first argument."""
    known = {path for path, _ in reference.every_command()}
    text = text_of(page)
    typed = re.findall(r"`(towline [^`]+)`|^(towline .+)$", text, re.MULTILINE)
    for line in (quoted or alone for quoted, alone in typed):
        words = [word for word in line.split() if re.fullmatch(r"[a-z]+", word)]
        assert any(" ".join(words[:end]) in known for end in (2, 3)), line


@pytest.mark.parametrize("page", all_pages())
def test_every_metric_is_there(page: str) -> None:
    """Under the name that a scrape shows."""
    known = {metric.name for metric in REGISTRY.collect()}
    known |= {f"{name}_total" for name in known}
    named = set(re.findall(r"`(towline_[a-z_]+)(?:\{[^`]*)?`", text_of(page)))
    tables = {"once_documents"}
    assert named - known - tables == set()


def test_every_knob_of_the_pipeline_is_on_its_page() -> None:
    """All of `fix`, and nothing that is no setting."""
    named = set(re.findall(r"`((?:fix|pipeline|worker)\.[a-z_]+)`", text_of("fix-pipeline.md")))
    paths = [one.path for one in reference_settings.every_setting(config.Settings)]
    known = {".".join(path.split(".")[:2]).removesuffix("[]") for path in paths if "." in path}
    assert {one for one in known if one.startswith(("fix.", "pipeline."))} - named == set()
    assert named - known == set()


@pytest.mark.parametrize("page", ["fix-pipeline.md", "polling.md"])
def test_every_sample_of_settings_is_valid(page: str) -> None:
    """Each one by itself, for the repository that it speaks of."""
    for sample in re.findall(r"```toml\n(.*?)```", text_of(page), re.DOTALL):
        tables = tomllib.loads(sample)
        tables.setdefault("fix", {}).setdefault("repos", ["octo-org/app"])
        config.Settings.model_validate(tables)


def test_the_hash_of_the_sample_is_that_of_its_line() -> None:
    """What the command beside it prints."""
    text = text_of("fix-pipeline.md")
    line = re.search(r"printf '%s' '(.+)' \| sha256sum", text)
    assert line is not None
    assert hashlib.sha256(line[1].encode()).hexdigest() in text
