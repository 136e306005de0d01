"""Alert rules and the Grafana dashboard name metrics and labels that the code has."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.reference_metrics import Metric, every_metric
from tests.deploy.files import CONTROL_PORT, DEPLOY, documents, of_kind, text_of

NAMED = re.compile(r"\btowline_[a-z0-9_]+")
FUNCTIONS = {
    *("absent", "deriv", "histogram_quantile", "increase", "max", "min", "rate", "sum"),
    *("and", "by", "or"),
}
OF_PROMETHEUS = {"job", "le", "instance"}


def rules() -> list[dict[str, Any]]:
    (file,) = documents("prometheus/alerts.yaml")
    return [rule for group in file["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text_of("grafana/towline.json"))["panels"]
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in panels():
        yield from (target["expr"] for target in panel.get("targets", ()))


@functools.cache
def series() -> dict[str, Metric]:
    """What Prometheus stores, by name."""
    found: dict[str, Metric] = {}
    for metric in every_metric():
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {f"{metric.name}{end}": metric for end in ends}
    return found


def balanced(text: str) -> bool:
    pairs = {")": "(", "]": "[", "}": "{"}
    open_ones: list[str] = []
    for sign in re.sub(r'"[^"]*"', "", text):
        if sign in pairs.values():
            open_ones.append(sign)
        elif sign in pairs and (not open_ones or open_ones.pop() != pairs[sign]):
            return False
    return not open_ones


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression(expression: str) -> None:
    """Balanced, of known functions, over metrics that exist, by labels that these have."""
    known = series()
    assert balanced(expression)
    used = NAMED.findall(expression)
    assert used or "up{" in expression
    assert [name for name in used if name not in known] == []
    labels = {label for name in used for label in known[name].labels} | OF_PROMETHEUS
    grouped = [
        one for group in re.findall(r"by \(([^)]*)\)", expression) for one in group.split(",")
    ]
    matched = re.findall(r"(\w+)\s*=~?\"", expression)
    assert {one.strip() for one in (*grouped, *matched)} <= labels
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\{[^}]*\}|by \([^)]*\)', " ", expression)
    assert set(re.findall(r"\b[a-z][a-z_]+\b", NAMED.sub(" ", bare))) <= FUNCTIONS | {"up"}


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_counters_are_read_by_their_growth(expression: str) -> None:
    """A counter's own value says when its process started, and nothing else."""
    for name, metric in series().items():
        if metric.kind == "counter" and re.search(rf"\b{name}\b", expression):
            ways = re.findall(rf"(\w+)\({name}\b", expression)
            assert ways
            assert set(ways) <= {"rate", "increase"}


def test_every_alert_leads_somewhere() -> None:
    """It has a severity, a summary, and a section of the handbook that exists."""
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        page, _, section = rule["annotations"]["runbook"].partition("#")
        text = (DEPLOY.parent / "docs/operations" / page).read_text(encoding="utf-8")
        headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
        assert section in {heading.lower().replace(" ", "-") for heading in headings}, section


def test_the_scrape_asks_the_control_plane() -> None:
    """At its port and its path, with a key."""
    (file,) = documents("prometheus/scrape.yaml")
    assert file["rule_files"] == ["alerts.yaml"]
    doors, workers = file["scrape_configs"]
    assert [doors["job_name"], workers["job_name"]] == ["towline", "towline-worker"]
    for job in (doors, workers):
        assert job["metrics_path"] == "/metrics"
        assert "credentials_file" in job["authorization"]
    assert doors["static_configs"] == [{"targets": [f"towline:{CONTROL_PORT}"]}]
    (asked,) = workers["dns_sd_configs"]
    service = of_kind("Service")[asked["names"][0]]
    assert [port["port"] for port in service["spec"]["ports"]] == [asked["port"]]


def test_a_worker_cannot_hide_that_no_door_answers() -> None:
    """The alarms about who is down look at one kind each."""
    jobs = {rule["alert"]: re.findall(r'job="([^"]+)"', rule["expr"]) for rule in rules()}
    assert set(jobs["TowlineDown"]) == {"towline"}
    assert set(jobs["TowlineWorkersDown"]) == {"towline-worker"}


def test_the_dashboards_panels() -> None:
    """Each has a number of its own, a place that no other has, and a legend for each line."""
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert all(target["legendFormat"] for target in panel.get("targets", ()))
