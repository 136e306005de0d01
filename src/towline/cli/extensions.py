"""Commands that other distributions bring, by the entry-point group `towline.commands`.

Each entry is a function that gets the typer app and adds its commands to it. It is loaded for
every call of `towline`, `--help` too, so its module imports what is slow only when it is called.
Our own `demo`, `sim` and `simulate` come from `towline-sim` in this way. Where that is not
installed, each of them says in one line what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

import typer

from towline_once.errors import Rejected

GROUP: Final = "towline.commands"
_ELSEWHERE: Final = {"demo": "towline-sim", "sim": "towline-sim", "simulate": "towline-sim"}
"""Our commands that are not in this distribution, and which one has them."""
_ANYTHING: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name in sorted(found):
        found[name].load()(app)
    for name in sorted(_ELSEWHERE.keys() - found.keys()):
        help_text = f"Not installed: it comes with {_ELSEWHERE[name]}."
        app.command(name, help=help_text, context_settings=_ANYTHING)(_missing(name))


def _missing(name: str) -> Callable[[], None]:
    def say() -> None:
        where = _ELSEWHERE[name]
        raise Rejected(
            f"`towline {name}` comes with {where}; in a checkout: pip install ./packages/{where}"
        )

    return say
