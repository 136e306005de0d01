"""The image and the compose file agree with the program that they run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import (
    CONTROL_PORT,
    DATA_PORT,
    DEPLOY,
    complaint_about,
    documents,
    is_a_setting,
    text_of,
)
from towline import config

ROOT = DEPLOY.parent
OURS = ("migrate", "api", "worker")


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, continued lines joined."""
    lines = [line for line in text_of("Dockerfile").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.split("\n") if line)
    ]


def said(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def services() -> dict[str, Any]:
    (compose,) = documents("compose.yaml")
    found: dict[str, Any] = compose["services"]
    return found


def test_the_image_is_made_in_two_stages_and_pinned() -> None:
    """The lock file is installed, then the package alone; the build stage is left behind."""
    assert len(said("FROM")) == 2
    assert all("-slim" in base for base in said("FROM"))
    runs = " ".join(said("RUN"))
    assert "-r requirements.lock" in runs
    assert "--no-deps ." in runs
    assert not re.search(r"https?://", runs)
    assert "--from=build /opt/towline /opt/towline" in said("COPY")


def test_the_image_runs_as_nobody_in_particular() -> None:
    """By number, so that an orchestrator can see that it is not root."""
    (user,) = said("USER")
    assert int(user) > 1000
    names = [word for word, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_image_copies_what_is_there() -> None:
    """Everything that it copies exists, and is let through by its ignore file."""
    let_in = {
        line[1:] for line in text_of("Dockerfile.dockerignore").splitlines() if line[0] == "!"
    }
    for line in said("COPY"):
        if not line.startswith("--from"):
            for name in line.split()[:-1]:
                assert (ROOT / name).exists(), name
                assert name in let_in


def test_the_images_commands_exist() -> None:
    """What it starts is a command of ours, and its health check asks a route that it has."""
    (command,) = said("CMD")
    words = list(eval(command))
    assert complaint_about(words) is None
    assert str(DATA_PORT) in words
    assert said("EXPOSE") == [f"{DATA_PORT} {CONTROL_PORT}"]
    (check,) = said("HEALTHCHECK")
    assert f"127.0.0.1:{DATA_PORT}/healthz" in check
    for setting in re.findall(r"TOWLINE_\w+(?==)", " ".join(said("ENV"))):
        assert is_a_setting(setting), setting


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_compose(name: str) -> None:
    """Its command is ours, its variables are settings, it is confined and has time to end."""
    service = services()[name]
    assert complaint_about(service["command"]) is None
    assert all(is_a_setting(variable) for variable in service["environment"])
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    drain = config.WorkerSettings().drain_seconds
    assert int(service["stop_grace_period"].removesuffix("s")) > drain + 10


def test_only_webhooks_are_reachable_from_outside() -> None:
    """The control plane is published to the machine itself, the databases not at all."""
    found = services()
    assert found["api"]["ports"] == ["8788:8788", "127.0.0.1:8789:8789"]
    assert [name for name in found if "ports" in found[name]] == ["api"]
    assert found["api"]["environment"]["TOWLINE_SERVE__CONTROL_PORT"] == str(CONTROL_PORT)


def test_everything_waits_for_what_it_needs() -> None:
    """The tables are there before anybody uses them; servers are asked whether they are well."""
    found = services()
    assert found["migrate"]["command"] == ["db", "upgrade"]
    assert found["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in ("api", "worker"):
        needs = found[name]["depends_on"]
        assert needs["migrate"]["condition"] == "service_completed_successfully"
        assert needs["redis"]["condition"] == "service_healthy"
    assert all("test" in found[name]["healthcheck"] for name in ("postgres", "redis"))


def test_redis_never_evicts() -> None:
    """A policy that evicts is refused by the library, so the compose file may not have one."""
    command = services()["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_the_example_of_secrets_loads(tmp_path: Path) -> None:
    """Every line is a setting that is accepted, with the variables of compose beside it."""
    lines = [line for line in text_of("towline.env.example").splitlines() if line[0] != "#"]
    given = dict(line.split("=", 1) for line in lines)
    assert all(is_a_setting(name) for name in given)
    beside = services()["api"]["environment"]
    loaded = config.load(
        environment=given | {k: re.sub(r"\$\{.*?\}", "x", v) for k, v in beside.items()}
    )
    assert loaded.engine == "celery"
    assert set(loaded.api_keys) == {"admin", "prometheus"}
    assert shlex.split(loaded.database_url) == ["postgresql://towline:x@postgres/towline"]
