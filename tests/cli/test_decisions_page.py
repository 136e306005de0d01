"""The commands of the page on decisions, run as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.docs_pages import shown
from towline.cli import app
from towline.config import load

_PAGE = "docs/how-to/check-decisions.md"


@pytest.mark.slow
def test_every_line_of_the_page(stormy_url: str, tmp_path: Path) -> None:
    """Each exits with zero and prints something; the settings take the table that one writes."""
    lines = [line for block in shown(_PAGE, "sh") for line in block.splitlines()]
    assert len(lines) > 5
    written = tmp_path / "staleness.toml"
    for line in lines:
        command, _, file = line.partition(" > ")
        words = command.replace("7d", "2023-01-01").split()
        done = CliRunner().invoke(app, words[1:], env={"TOWLINE_DATABASE_URL": stormy_url})
        assert (words[0], done.exit_code) == ("towline", 0), (line, done.exception)
        assert done.output, line
        if file:
            written.write_text(done.stdout, encoding="utf-8")
    assert load(written, {}).staleness != load(None, {}).staleness
