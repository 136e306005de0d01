"""`towline init`: what it asks, what it writes, and that the service starts with it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cli.doctor_runs import towline
from tests.cli.terminal import typed
from tests.e2e.programs import Program
from towline import config

SECRET = re.compile(r"TOWLINE_GITHUB__WEBHOOK_SECRETS=([0-9a-f]{64})")


def answered(folder: Path, *answers: str) -> str:
    """Run it at a terminal, give the answers, and return what it said."""
    return typed(folder, "init", answers="".join(f"{answer}\n" for answer in answers))


async def test_defaults_load_and_serve(tmp_path: Path) -> None:
    """`--yes` asks nothing; the file is what the defaults say, and a service starts with it."""
    ran = await towline(tmp_path, "init", "--yes")
    assert (ran.code, ran.err) == (0, "")
    (secret,) = SECRET.findall(ran.out)
    file = tmp_path / "towline.toml"
    assert secret not in file.read_text(encoding="utf-8")
    loaded = config.load(file, {})
    expected = config.Settings.model_validate(
        {"tow": {"branch_prefixes": ["towline/"]}, "reconciler": {"observe_only": True}}
    )
    assert loaded == expected
    environment = {"TOWLINE_GITHUB__WEBHOOK_SECRETS": secret}
    with Program(tmp_path, environment, "serve") as started:
        assert started.stop() == 0
    assert "Traceback" not in "".join(started.output)


def test_answers_are_what_is_loaded(tmp_path: Path) -> None:
    """Each answer ends up in its setting; one that cannot be read is asked for again."""
    said = answered(
        tmp_path,
        "mysql://nobody",
        "postgresql://towline:hunter2@db.example/towline",
        "gitlab",
        "ftp://gitlab.example",
        "https://gitlab.example/api/v4",
        "nonsense",
        "octo-org/app, octo-org/site",
        "dependabot[bot] renovate[bot]",
        "bot/ fix/",
        "dependencies, needs a tow",
        "n",
    )
    text = (tmp_path / "towline.toml").read_text(encoding="utf-8")
    assert "hunter2" not in text
    assert "TOWLINE_DATABASE_URL" in text
    assert "sqlite:///FILE or postgresql" in said
    url = "postgresql://towline:hunter2@db.example/towline"
    loaded = config.load(tmp_path / "towline.toml", {"TOWLINE_DATABASE_URL": url})
    assert loaded == config.Settings.model_validate(
        {
            "database_url": url,
            "gitlab": {"api_url": "https://gitlab.example/api/v4"},
            "tow": {
                "repos": ["octo-org/app", "octo-org/site"],
                "authors": ["dependabot[bot]", "renovate[bot]"],
                "branch_prefixes": ["bot/", "fix/"],
                "labels": ["dependencies", "needs a tow"],
            },
            "reconciler": {"observe_only": False},
        }
    )
    assert len(re.findall(r"TOWLINE_GITLAB__WEBHOOK_SECRETS=[0-9a-f]{64}", said)) == 1


async def test_every_example_in_it_holds(tmp_path: Path) -> None:
    """With the `#` taken away from the examples, the file still loads."""
    await towline(tmp_path, "init", "--yes")
    file = tmp_path / "towline.toml"
    text = re.sub(r"^#(?=[\w\[])", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")
    loaded = config.load(file, {})
    assert loaded.fix.repos == ("octo-org/app",)
    assert loaded.triggers.policy is not None


async def test_a_file_is_not_written_over(tmp_path: Path) -> None:
    """Only with `--force`."""
    file = tmp_path / "towline.toml"
    file.write_text("# mine\n", encoding="utf-8")
    ran = await towline(tmp_path, "init", "--yes")
    assert (ran.code, ran.err.count("\n"), "--force" in ran.err) == (1, 1, True)
    assert file.read_text(encoding="utf-8") == "# mine\n"
    ran = await towline(tmp_path, "init", "--yes", "--force", "--json")
    assert ran.code == 0
    assert len(ran.data()["webhook_secret"]) == 64
    assert "[tow]" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "--yes takes the defaults"),
        (["--yes", "--config", "no/such/x.toml"], "does not exist"),
        (["--yes", "--config", "."], "is a folder"),
    ],
)
async def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, words: list[str], complaint: str
) -> None:
    """No terminal, no folder, not a file: one line each, and nothing is written."""
    ran = await towline(tmp_path, "init", *words)
    assert (ran.code, ran.err.count("\n")) == (1, 1), ran.err
    assert complaint in ran.err
    assert os.listdir(tmp_path) == []
