"""Every public function of the library is documented, and the examples of its docstrings run."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import towline_once

NEEDS_THE_WORLD = "# needs "


def public() -> Iterator[tuple[str, Any]]:
    """Every function that the package exports, and every public method of what does something."""
    yield "keys.parse", towline_once.keys.parse
    yield "keys.check_horizons", towline_once.keys.check_horizons
    for name in towline_once.__all__:
        found = getattr(towline_once, name)
        if inspect.isroutine(found):
            yield name, found
        elif name in {"Idempotency", "Locks", "Dedup", "RateLimit", "Slots", "Breaker", "Permit"}:
            for method, function in inspect.getmembers(found):
                if not method.startswith("_") and inspect.isroutine(function):
                    yield f"{name}.{method}", function
    yield "Lease.check", towline_once.Lease.check
    yield "IdempotencyMiddleware", towline_once.IdempotencyMiddleware


def examples() -> Iterator[tuple[str, str]]:
    for name, function in public():
        for code in re.findall(r"```python\n(.*?)```", inspect.getdoc(function) or "", re.DOTALL):
            if not code.startswith(NEEDS_THE_WORLD):
                yield name, code


def test_each_public_function_is_documented() -> None:
    """It says what it does, and shows it; where it takes arguments or can fail, it says so."""
    bare = [name for name, function in public() if not inspect.getdoc(function)]
    assert bare == []
    silent = [
        name
        for name, function in public()
        if "```python" not in (inspect.getdoc(function) or "")
        and name.partition(".")[2] != "aclose"  # leaving `async with` calls it in every example
        and name != "IdempotencyMiddleware"  # `examples/` has whole apps
    ]
    assert silent == []


@pytest.mark.parametrize(("name", "code"), list(examples()), ids=[name for name, _ in examples()])
async def test_the_example_runs(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of a docstring does what it asserts, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    body = "async def example():\n" + textwrap.indent(code, "    ")
    space: dict[str, Any] = {"towline_once": towline_once}
    exec(compile(body, name, "exec"), space)  # our own docstrings
    await space["example"]()
