"""The text of a new `towline.toml`: every section explained, and no secret in it.

A line that begins with `#` and a blank explains. One that begins with `#` alone is an example: it
counts when the `#` is taken away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from towline.forges.registry import FORGES, title_of

NO_FORGE: Final = "none"


class Answers(NamedTuple):
    """The answers, with the defaults for those that were not asked."""

    database_url: str = "sqlite:///towline.db"
    forge: str = "github"
    api_url: str = FORGES["github"].api_url
    repos: Sequence[str] = ()
    authors: Sequence[str] = ()
    branch_prefixes: Sequence[str] = ("towline/",)
    labels: Sequence[str] = ()
    observe_only: bool = True

    @property
    def database_has_password(self) -> bool:
        """It then belongs into the environment."""
        before, at, _ = self.database_url.partition("://")[2].rpartition("@")
        return bool(at) and ":" in before


class Variable(NamedTuple):
    """A secret that is set where Towline is started."""

    name: str
    what: str


def variables_for(answers: Answers) -> list[Variable]:
    found = []
    if answers.database_has_password:
        found.append(Variable("TOWLINE_DATABASE_URL", "the database's address with its password"))
    if answers.forge != NO_FORGE:
        upper, shown = answers.forge.upper(), title_of(answers.forge)
        found.append(Variable(f"TOWLINE_{upper}__TOKEN", f"a token with which {shown} is asked"))
        what = f"what {shown} signs its webhooks with"
        found.append(Variable(f"TOWLINE_{upper}__WEBHOOK_SECRETS", what))
    return found


def towline_toml(answers: Answers) -> str:
    parts = [
        _head(answers),
        _SERVE,
        _forge(answers),
        _tow(answers),
        _reconciler(answers),
        _PATIENCE,
        _SIGNALS,
        _PEOPLE,
        _FIX,
        _WORK,
    ]
    return "\n".join(parts)


def _head(answers: Answers) -> str:
    told = "\n".join(f"#   {one.name}: {one.what}" for one in variables_for(answers))
    secrets = f"# Set in the environment, not here, as they are secrets:\n{told}\n" if told else ""
    url = f"database_url = {_text(answers.database_url)}"
    if answers.database_has_password:
        url = "# database_url comes from TOWLINE_DATABASE_URL, as it holds a password."
    return f"""\
# Settings of Towline. Every one can be overridden by TOWLINE_…, with __ for nesting:
# TOWLINE_SERVE__PORT=9000 is port in [serve]. Check them with: towline doctor
{secrets}
# Where everything is kept: sqlite:///FILE for one machine, postgresql://… for many.
{url}
# With several machines: workers by Celery, and locks in Redis (TOWLINE_REDIS_URL).
#engine = "embedded"
#state_backend = "sql"
"""


def _forge(answers: Answers) -> str:
    if answers.forge == NO_FORGE:
        return """\
# No forge yet. With one, pull requests are looked at and helped; its token is a secret.
#[github]
#api_url = "https://api.github.com"
"""
    shown, section = title_of(answers.forge), answers.forge
    return f"""\
# {shown}: where its API is. Its webhooks go to /webhooks/{section} of this service.
[{section}]
api_url = {_text(answers.api_url)}
"""


def _tow(answers: Answers) -> str:
    return f"""\
# Which pull requests are towed. Any of authors, branch_prefixes and labels is enough; with none of
# them, none is. In repos open ones are looked for, in case their webhooks were lost.
[tow]
authors = {_list(answers.authors)}
branch_prefixes = {_list(answers.branch_prefixes)}
labels = {_list(answers.labels)}
repos = {_list(answers.repos)}
"""


def _reconciler(answers: Answers) -> str:
    return f"""\
# The sweep over what is stuck. While observe_only is true it decides and tells, and does nothing:
# read `towline prs --stale` for a few days, then set it to false.
[reconciler]
observe_only = {"true" if answers.observe_only else "false"}
#every_seconds = 300
#max_actions_per_sweep = 50
"""


def _text(text: str) -> str:
    """A text of JSON is one of TOML."""
    return json.dumps(text, ensure_ascii=False)


def _list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


_SERVE: Final = """\
# Where to listen. Only this machine reaches 127.0.0.1; put a reverse proxy with TLS in front of it.
[serve]
host = "127.0.0.1"
port = 8788
"""

_PATIENCE: Final = """\
# How long a pull request may stay in a state before it counts as stuck, in seconds.
#[staleness]
#checks_running = 7200
#approved = 1800

# How often each remedy may be tried; 0 forbids it.
#[budgets]
#rebuild = 2
#close_and_reopen = 1
"""

_SIGNALS: Final = """\
# How outcomes are recognised: which checks count, which are the policy's, whose review approves.
#[signals]
#required = ["build"]
#policy_checks = ["policy-bot*"]

# How bots are poked. Without a trigger Towline re-runs, reviews or merges by itself.
#[triggers.policy]
#kind = "comment"
#text = "/policy recheck"
"""

_PEOPLE: Final = """\
# Slash commands of people in comments, such as /rebuild and /why.
#[commands]
#permission = "write"

# Where escalations are sent: apprise addresses, which are secrets. Set TOWLINE_NOTIFY__URLS.
# Who may use the API and the dashboard: towline keys create --scope admin
"""

_FIX: Final = """\
# Repositories whose failures and advisories become pull requests. Nothing is merged by this.
#[fix]
#repos = ["octo-org/app"]
#fixers = ["ruff", "bump"]

# What is different for one repository.
#[repo."octo-org/app"]
#observe_only = true
"""

_WORK: Final = """\
# How much is worked on at a time, and how chatty the log is.
#[worker]
#concurrency = 100

[log]
level = "info"
"""
