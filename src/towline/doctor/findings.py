"""What a check of an installation found, how bad it is, and what mends it.

A finding is one line. Whatever is not well carries a fix: a command to run or a setting to make.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Verdict: TypeAlias = Literal["ok", "warning", "failure"]

VERDICTS: Final[tuple[Verdict, ...]] = ("ok", "warning", "failure")
_LITTLE_SPACE: Final = 1_000_000_000
_NO_SPACE: Final = 100_000_000
_OLDEST_POSTGRES: Final = 14
_CLOCK_WARNING: Final = 5.0
_CLOCK_FAILURE: Final = 60.0
EVENTS: Final = (
    "check_run",
    "check_suite",
    "issue_comment",
    "pull_request",
    "pull_request_review",
    "push",
    "status",
)
"""The events of GitHub without which something is noticed only by the next sweep."""
APP_PERMISSIONS: Final = {
    "actions": "write",
    "checks": "write",
    "contents": "write",
    "issues": "write",
    "pull_requests": "write",
    "statuses": "write",
}
_RANKS: Final = ("none", "read", "write", "admin")


class Finding(NamedTuple):
    """`fix` is empty only where all is well."""

    check: str
    verdict: Verdict
    found: str
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check, "warning", found, fix)


def failure(check: str, found: str, fix: str) -> Finding:
    return Finding(check, "failure", found, fix)


def tally(findings: Iterable[Finding]) -> dict[Verdict, int]:
    counts: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
    for finding in findings:
        counts[finding.verdict] += 1
    return counts


def one_line(text: str, most: int = 400) -> str:
    """Whatever a server or a library said, fit for a line of ours."""
    joined = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in joined)[:most]


# ------------------------------------------------------------------ the machine


def judge_space(check: str, folder: str, free: int) -> Finding:
    found = f"{_size(free)} free in {folder}"
    fix = f"free some space in {folder}, or move what is stored there to another disk"
    if free < _NO_SPACE:
        return failure(check, found, fix)
    return warning(check, found, fix) if free < _LITTLE_SPACE else ok(check, found)


def judge_clock(check: str, whose: str, behind_seconds: float) -> Finding:
    """`behind_seconds` is how far this machine's clock is behind theirs; negative if ahead."""
    off = abs(behind_seconds)
    word = "behind" if behind_seconds > 0 else "ahead of"
    if off < _CLOCK_WARNING:
        return ok(check, f"this machine and {whose} agree on the time (within {off:.1f} s)")
    found = f"this machine is {off:.0f} s {word} {whose}"
    fix = "keep the clock right with NTP: timedatectl set-ntp true"
    return (failure if off >= _CLOCK_FAILURE else warning)(check, found, fix)


def _size(amount: int) -> str:
    value = float(amount)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


# ------------------------------------------------------------------ the stores


def judge_tables(check: str, version: str | None, newest: str) -> Finding:
    if version == newest:
        return ok(check, f"the tables have version {version}, as this Towline needs")
    if version is None:
        return ok(check, f"there are no tables yet; the first start makes them ({newest})")
    if version > newest:
        return failure(
            check,
            f"the tables have version {version}, newer than this Towline's {newest}",
            "install the Towline that made them, or a newer one",
        )
    return warning(
        check,
        f"the tables have version {version}; this Towline needs {newest}",
        "towline db upgrade",
    )


class PostgresFacts(NamedTuple):
    """As the server tells them; `version` as in 180001."""

    version: int
    is_standby: bool
    may_create: bool
    fsync: str
    synchronous_commit: str


def judge_postgres(check: str, where: str, facts: PostgresFacts, *, current: bool) -> list[Finding]:
    major = facts.version // 10_000
    reached = f"PostgreSQL {major}.{facts.version % 10_000} at {where} answers"
    if major < _OLDEST_POSTGRES:
        fix = f"upgrade the server to PostgreSQL {_OLDEST_POSTGRES} or newer"
        return [failure(check, f"{reached}, but is too old", fix)]
    if facts.is_standby:
        fix = "name the primary in database_url (TOWLINE_DATABASE_URL)"
        return [failure(check, f"{reached}, but as a standby that cannot be written to", fix)]
    if not current and not facts.may_create:
        fix = "let its role create tables: GRANT CREATE ON SCHEMA public TO …"
        return [failure(check, f"{reached}, but the role may not create the tables", fix)]
    found = [ok(check, reached)]
    for name, value in (("fsync", facts.fsync), ("synchronous_commit", facts.synchronous_commit)):
        if value == "off":
            risk = "what was answered may be lost when the server's machine stops"
            fix = f"ALTER SYSTEM SET {name} = 'on'; SELECT pg_reload_conf();"
            found.append(warning(check, f"{name} is off: {risk}", fix))
    return found


class RedisFacts(NamedTuple):
    version: str
    policy: str
    persists: bool


def judge_redis(
    check: str, where: str, facts: RedisFacts, *, holds_state: bool, accepted: bool
) -> list[Finding]:
    """Where it holds state, what it forgets matters; a broker's messages are sent again.

    `accepted` is whether the settings say that it may drop things.
    """
    reached = f"Redis {facts.version} at {where} answers, maxmemory-policy {facts.policy}"
    if facts.policy != "noeviction":
        fix = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        judged = warning if accepted else failure
        return [judged(check, f"{reached}: it may drop locks and records", fix)]
    if holds_state and not facts.persists:
        fix = "redis-cli CONFIG SET appendonly yes, and the same in redis.conf"
        return [warning(check, f"{reached}; it keeps nothing over a restart", fix)]
    return [ok(check, reached)]


# ------------------------------------------------------------------ the checks that must pass


def judge_required(check: str, without: Sequence[str]) -> list[Finding]:
    """`without` are the repositories with no required check; an empty name is all the others."""
    if not without:
        return [ok(check, "the required checks are named: only these decide")]
    return [_unnamed(check, repo) for repo in without]


def _unnamed(check: str, repo: str) -> Finding:
    table = f'repo."{repo}".signals' if repo else "signals"
    found = (
        f"{table}.required is empty: every check that is known must pass, and a quick first one, "
        "such as DCO or CLA, may be all that is known at first"
    )
    return warning(check, found, f"name the checks that must pass in {table}.required")


# ------------------------------------------------------------------ the forge


def judge_scopes(check: str, login: str, scopes: Sequence[str] | None) -> Finding:
    """A classic token tells its scopes; a fine-grained one tells rights by repository."""
    whose = f"GitHub takes the token of {login}"
    if scopes is None:
        return ok(check, f"{whose}; its rights are looked at by repository")
    shown = ", ".join(scopes) or "none"
    if not {"repo", "public_repo"} & set(scopes):
        fix = "give the token the scope repo (public_repo for public repositories alone)"
        return failure(check, f"{whose}, but its scopes are: {shown}", fix)
    return ok(check, f"{whose}; scopes: {shown}")


def judge_repo_rights(check: str, repo: str, rights: Mapping[str, bool]) -> Finding:
    """As GitHub shows them with a repository."""
    held = [name for name in ("admin", "maintain", "push", "triage", "pull") if rights.get(name)]
    best = held[0] if held else "none"
    if not rights.get("push"):
        fix = f"give the token's user write access to {repo}"
        return failure(check, f"{repo} can be read, not written to (best right: {best})", fix)
    return ok(check, f"{repo} can be read and written to (best right: {best})")


def judge_app_rights(check: str, repo: str, granted: Mapping[str, str]) -> Finding:
    lacking = [
        f"{name}: {wanted}"
        for name, wanted in APP_PERMISSIONS.items()
        if _rank(granted.get(name, "none")) < _rank(wanted)
    ]
    if lacking:
        fix = f"grant the App {', '.join(lacking)}, and accept that in its installation"
        return failure(check, f"the App is installed on {repo} without {', '.join(lacking)}", fix)
    return ok(check, f"the App is installed on {repo} with the rights it needs")


def _rank(level: str) -> int:
    return _RANKS.index(level) if level in _RANKS else 0


class HookFacts(NamedTuple):
    """A webhook as the forge has it."""

    name: str
    url: str
    active: bool
    has_secret: bool
    verifies_tls: bool
    events: Collection[str]


def judge_hook(check: str, hook: HookFacts, *, wants_secret: bool) -> list[Finding]:
    """What is wrong with a hook that is meant for us; nothing if nothing is."""
    found: list[Finding] = []
    if not hook.active:
        fix = "switch it on in the repository's settings, under Webhooks"
        found.append(failure(check, f"{hook.name} is switched off", fix))
    if wants_secret and not hook.has_secret:
        fix = "enter one of github.webhook_secrets as its secret"
        refused = f"{hook.name} has no secret: its deliveries are refused with 401"
        found.append(failure(check, refused, fix))
    missing = [] if "*" in hook.events else [one for one in EVENTS if one not in hook.events]
    if missing:
        fix = f"add these events to it: {', '.join(missing)}"
        found.append(warning(check, f"{hook.name} does not send {', '.join(missing)}", fix))
    if hook.url.startswith("https:") and not hook.verifies_tls:
        fix = "switch its SSL verification on"
        found.append(warning(check, f"{hook.name} does not verify our certificate", fix))
    return found


class DeliveryFacts(NamedTuple):
    """The last deliveries of a hook: the answers, newest first, and how many we know."""

    statuses: Sequence[int]
    known_here: int | None
    """None where there is no inbox to look into."""


def judge_deliveries(check: str, name: str, url: str, facts: DeliveryFacts) -> Finding:
    total = len(facts.statuses)
    if not total:
        fix = "press Redeliver or Ping in the hook's settings, and run this again"
        return warning(check, f"{name} to {url} has delivered nothing yet", fix)
    taken = sum(200 <= status < 300 for status in facts.statuses)
    newest = facts.statuses[0]
    told = f"{name} to {url}: {taken} of the last {total} deliveries were taken"
    if not 200 <= newest < 300:
        return failure(check, f"{told}, the newest was answered {_answer(newest)}", _mend(newest))
    if facts.known_here == 0:
        fix = "point the hook at this installation, or database_url at the one that takes it in"
        return warning(check, f"{told}, but none of them is in this database", fix)
    here = "" if facts.known_here is None else f", {facts.known_here} of them are in this database"
    return ok(check, f"{told}{here}")


def _answer(status: int) -> str:
    return str(status) if status else "not at all"


def _mend(status: int) -> str:
    if status == 401:
        return "make the hook's secret one of github.webhook_secrets"
    if status in (404, 405):
        return "the address must end in /webhooks/github"
    if status == 413:
        return "raise ingest.max_body_bytes, and the limit of the proxy in front"
    if not status or status >= 500:
        return "start towline serve, and let the forge reach it: a reverse proxy, an open port"
    return "look at the delivery in the hook's settings: it shows the answer"
