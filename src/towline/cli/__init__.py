"""The command line. Every failure is one line on standard error and a non-zero exit."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from towline.cli import (
    bench,
    command,
    doctor,
    extensions,
    init,
    pulls,
    reconcile,
    runs,
    score,
    tune,
)
from towline.cli.keys import keys
from towline.cli.output import (
    leave_what_cannot_be_written,
    tell_what_cannot_be_written,
    write_what_waits,
)
from towline.cli.sessions import sessions
from towline.cli.stopping import end_at_once_when_stopped
from towline_once.errors import TowlineError

T = TypeVar("T")
_OWNER_ALONE = 0o077
"""What a command makes, and what the programs it starts make, is for this user alone."""

app = typer.Typer(
    help="Towline tows machine-made pull requests, and never acts twice on the same event.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to load than all the rest of --help
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
database = typer.Typer(help="The database's tables.", no_args_is_help=True)
app.add_typer(database, name="db")
app.add_typer(keys, name="keys")
app.add_typer(sessions, name="sessions")
pulls.register(app)
command.register(app)
reconcile.register(app)
tune.register(app)
score.register(app)
runs.register(app)
doctor.register(app)
init.register(app)
bench.register(app)
extensions.register(app)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="The settings file; towline.toml if not given.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@database.command("upgrade")
def upgrade(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Bring the tables to this version's schema; safe to run at any time, by many at once."""
    from towline.cli.db import show, upgraded

    show(_run(upgraded(config)), json)


@database.command("current")
def current(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show which version the tables have, and which one this Towline needs."""
    from towline.cli.db import found, show

    show(_run(found(config)), json)


@app.command("serve")
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 for any free one.")] = None,
    config: ConfigOption = None,
) -> None:
    """Run the service: accept webhooks and submissions, and work on them, until stopped."""
    end_at_once_when_stopped()
    from towline.cli.serve import run

    run(config, host, port)


@app.command("worker")
def worker(config: ConfigOption = None) -> None:
    """Run a worker: work on jobs, without accepting webhooks, until stopped."""
    end_at_once_when_stopped()
    from towline.cli.worker import run

    run(config)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from towline import __version__

        typer.echo(__version__)
        raise typer.Exit


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def main() -> None:
    os.umask(_OWNER_ALONE)
    tell_what_cannot_be_written()
    try:
        code = app(standalone_mode=False, prog_name="towline")
        write_what_waits()  # here, where a failure can still be told
        sys.exit(code)
    except TowlineError as error:
        _say(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        leave_what_cannot_be_written()
        sys.exit(1)
    except _Complaint as error:
        _say_what_was_asked_wrongly(error)
    except Exception as error:
        _say_what_nobody_foresaw(error)


_Complaint: type[Any] = typer.BadParameter.__mro__[2]
"""The root of what typer says of wrong words; its name and home differ by version."""


def _say_what_was_asked_wrongly(error: Any) -> NoReturn:
    """One line; but where nothing was asked for, the help."""
    if "NoArgsIsHelp" in type(error).__name__:
        error.show()
        sys.exit(error.exit_code)
    text = " ".join(str(error.format_message()).split())
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context is not None else ""
    _say(f"{text}{where}", error.exit_code)


def _say_what_nobody_foresaw(error: Exception) -> NoReturn:
    from towline.cli import unexpected_error

    unexpected_error.log(error)
    _say(unexpected_error.told(error), 1)


def _say(text: str, code: int) -> NoReturn:
    typer.secho(f"towline: {text}", fg="red", err=True)
    leave_what_cannot_be_written()
    sys.exit(code)
