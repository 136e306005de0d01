"""What README and docs show is run, as shown."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import towline
from scripts import reference, reference_metrics, reference_settings
from towline import config
from towline_once.metrics import _COUNTED

ROOT = Path(__file__).parent.parent


def blocks(file: str, language: str) -> list[str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///towline.db"])
async def test_readme_example(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's first example runs as printed, with no extra, on memory and on SQLite."""
    monkeypatch.chdir(tmp_path)
    example = blocks("README.md", "python")[0].replace("sqlite:///towline.db", url)
    lines = "".join(f"    {line}\n" for line in example.splitlines())
    space: dict[str, Any] = {}
    exec(f"async def example(body, start_run):\n{lines}    return out\n", space)

    async def start_run() -> dict[str, str]:
        return {"started": "yes"}

    out = await space["example"]({"action": "opened"}, start_run)
    assert (out.processed, out.result, out.run_id) == (True, {"started": "yes"}, None)
    assert out.key == "github:550e8400-e29b-41d4-a716-446655440000"


def test_tutorial(tmp_path: Path) -> None:
    """The tutorial's program prints what the tutorial says, on the first and second run."""
    program = blocks("docs/tutorial/index.md", "python")[0]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.split("\n")
        for _ in range(2)
    ]
    assert outputs[0][:3] == ["starting", "True {'run': 7}", "False {'run': 7}"]
    assert outputs[1][:2] == ["False {'run': 7}", "False {'run': 7}"]


@pytest.mark.parametrize("package", ["towline-once", "towline-sim"])
def test_readme_of_a_package(package: str, tmp_path: Path) -> None:
    """Its example is a program that prints what the README says."""
    (program,) = blocks(f"packages/{package}/README.md", "python")
    (printed,) = blocks(f"packages/{package}/README.md", "text")
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == printed


def test_every_counter_and_name_is_in_the_reference() -> None:
    """The reference names every counter and every public name of the library."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    pages += (ROOT / "README.md").read_text(encoding="utf-8")
    for counter in _COUNTED:
        assert f"{counter}_total" in pages, counter
    missing = [name for name in towline.__all__ if not re.search(rf"\b{name}\b", pages)]
    assert not missing


@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [
        ("asyncpg", "postgresql://127.0.0.1/x", "towline[postgres]"),
        ("redis", "redis://127.0.0.1", "towline[redis]"),
    ],
)
def test_a_missing_extra_is_one_line(package: str, url: str, extra: str) -> None:
    """Without the extra's package, opening its store says in one line what to install."""
    program = (
        f"import sys, asyncio; sys.modules[{package!r}] = None\n"
        "import towline\n"
        f"async def main():\n    await towline.Locks.open({url!r})\n"
        "try:\n    asyncio.run(main())\n"
        "except towline.MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.count("\n"), extra in done.stdout) == (1, True), done.stderr


def test_every_public_name_can_be_reached() -> None:
    """Each name in `towline.__all__` loads, and an unknown one is an AttributeError."""
    for name in towline.__all__:
        assert getattr(towline, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        towline.nothing_like_it  # noqa: B018
    assert asyncio.iscoroutinefunction(towline.Idempotency.process)


def test_the_reference_is_what_the_code_says() -> None:
    """Commands, settings, metrics and the lifecycle: `make docs` would write nothing new."""
    assert [str(file.relative_to(ROOT)) for file, _ in reference.differing()] == []


def test_every_setting_says_what_it_means() -> None:
    """In a sentence under the field, which the settings page shows."""
    silent = [
        one.path for one in reference_settings.every_setting(config.Settings) if not one.meaning
    ]
    assert silent == []


def test_every_variable_of_the_settings_page_is_one() -> None:
    """A name from the page is placed where the page says."""
    for one in reference_settings.every_setting(config.Settings):
        if (
            one.kind == "whole number from 1"
            and "NAME" not in one.variable
            and "[]" not in one.path
        ):
            if one.path.startswith(("fix.agent", "fix.validation")):
                continue
            loaded: Any = config.load(environment={one.variable: "7"})
            for part in one.path.split("."):
                loaded = getattr(loaded, part)
            assert loaded == 7, one.path


def test_every_command_has_a_help() -> None:
    """Each command, argument and option says what it is for."""
    for path, command in reference.every_command():
        assert command.help, path
        for param in command.params:
            assert getattr(param, "help", None), f"{path} {param.name}"


def test_every_metric_has_its_line() -> None:
    """Each counter, gauge and histogram in the source is in the table of metrics."""
    made = re.compile(r'\b(?:Counter|Gauge|Histogram)\(\s*"(towline_[a-z_0-9]+)"')
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "packages").rglob("*.py")]
    sources = (file.read_text(encoding="utf-8") for file in files)
    names = {name for source in sources for name in made.findall(source)}
    told = {metric.name.removesuffix("_total") for metric in reference_metrics.every_metric()}
    assert len(names) > 50
    assert sorted(names - told) == []
