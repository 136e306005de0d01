"""`towline init`: a few questions, and a `towline.toml` that explains itself."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from towline.cli.pulls import Json, print_json
from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.cli.init_text import Answers

T = TypeVar("T")
_File = Annotated[Path, typer.Option("--config", help="The file to write.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Take the defaults, and ask nothing.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(
    config: _File = Path("towline.toml"),
    yes: _Yes = False,
    force: _Force = False,
    json: Json = False,
) -> None:
    """Ask a few questions, and write a commented towline.toml without secrets."""
    from towline.cli.init_text import NO_FORGE, Answers, towline_toml, variables_for

    _check_place(config, force)
    if not yes and not sys.stdin.isatty():
        raise Rejected("there is no terminal to ask at; towline init --yes takes the defaults")
    answers = Answers() if yes else _asked()
    _write(config, towline_toml(answers), force)
    secret = secrets.token_hex(32) if answers.forge != NO_FORGE else None
    wanted = variables_for(answers)
    if json:
        names = [one.name for one in wanted]
        print_json({"file": str(config), "variables": names, "webhook_secret": secret})
        return
    typer.echo(f"{config} is written.")
    if wanted:
        typer.echo("Set these where Towline is started; the webhook secret is shown this once:")
    for one in wanted:
        shown = secret if one.name.endswith("__WEBHOOK_SECRETS") else "…"
        typer.echo(f"  export {one.name}={shown}    # {one.what}")
    typer.echo("Then: towline doctor, and towline serve")


def _check_place(file: Path, force: bool) -> None:
    if file.is_dir():
        raise Rejected(f"{file} is a folder; --config names a file")
    if file.exists() and not force:
        raise Rejected(f"{file} is there already; --force writes over it")
    if not file.absolute().parent.is_dir():
        raise Rejected(f"the folder {file.absolute().parent} does not exist")


def _write(file: Path, text: str, force: bool) -> None:
    """For its owner alone, and not over a file that came while the questions were asked."""
    from towline_once.private_files import write_private

    try:
        write_private(file, text.encode(), over=force)
    except FileExistsError:
        raise Rejected(f"{file} is there already; --force writes over it") from None
    except OSError as error:
        raise Rejected(f"cannot write {file}: {error.strerror or error}") from None


def _asked() -> Answers:
    from towline.cli.init_text import NO_FORGE, Answers
    from towline.forges.registry import FORGES

    plain = Answers()
    database = _ask(
        "Database: sqlite:///FILE, or postgresql://… for several machines",
        plain.database_url,
        _database_url,
    )
    forge: Any = _ask(f"Forge: {', '.join(FORGES)} or {NO_FORGE}", plain.forge, _forge)
    api_url = ""
    if forge != NO_FORGE:
        api_url = _ask("Address of its API", FORGES[forge].api_url, _setting(forge, "api_url"))
    repos = _ask("Repositories to look into, as OWNER/NAME", "", _words("repos"))
    typer.echo("Which pull requests are towed? Any of the next three is enough.")
    return Answers(
        database_url=database,
        forge=forge,
        api_url=api_url,
        repos=repos,
        authors=_ask("Of these authors, such as dependabot[bot]", "", _words("authors")),
        branch_prefixes=_ask(
            "From branches that begin with",
            " ".join(plain.branch_prefixes),
            _words("branch_prefixes"),
        ),
        labels=_ask("With these labels, parted by commas", "", _labels),
        observe_only=typer.confirm("Only observe at first, and act on nothing?", default=True),
    )


def _ask(question: str, default: str, read: Callable[[str], T]) -> T:
    """Again until the answer can be read."""
    while True:
        shown = typer.prompt(question, default=default, show_default=bool(default))
        text = str(shown).strip()
        try:
            if not text.isprintable():
                raise Rejected("an answer is made of visible characters")
            return read(text)
        except Rejected as error:
            typer.echo(f"  {error}", err=True)


def _database_url(text: str) -> str:
    from towline.db import database_for

    database_for(text)
    return text


def _forge(text: str) -> str:
    from towline.cli.init_text import NO_FORGE
    from towline.forges.registry import FORGES

    known = (*FORGES, NO_FORGE)
    if text.lower() not in known:
        raise Rejected(f"one of {', '.join(known)}")
    return text.lower()


def _setting(table: str, name: str) -> Callable[[str], Any]:
    """Read as the settings themselves would, from the environment."""

    def read(text: str) -> Any:
        from towline.config import load

        variable = f"TOWLINE_{table}__{name}".upper()
        found = load(Path(os.devnull), {variable: text})
        return getattr(getattr(found, table), name)

    return read


def _words(name: str) -> Callable[[str], Any]:
    return _setting("tow", name)


def _labels(text: str) -> list[str]:
    """A label may have blanks in it."""
    return [label for part in text.split(",") if (label := part.strip())]
