"""A world outside of the fix pipeline that fits in memory: branches, a forge, a fixer, checks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towline.events import CheckChanged, PullRequestChanged
from towline.fix.attempt import Attempt, StageEnd
from towline.fix.fixers.base import FixerReport, Plan
from towline.fix.model import Errand
from towline.forges.base import NewPull, Opened
from towline.forges.snapshot import PullRef, Snapshot
from towline.git.workspace import Workspace
from towline.sandbox.base import Limits, Ran, Sandbox
from towline_once.errors import Rejected

REPO = "octo-org/app"
BROKEN = "app.py:1:1: F401 unused import\nFound 1 error."


@dataclass
class Origin:
    """Branches as commits, and commits as what they are made of."""

    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    pushes: list[tuple[str, str]] = field(default_factory=list)

    def commit(self, files: Mapping[str, str], *salt: str) -> str:
        sha = hashlib.sha1(json.dumps([sorted(files.items()), *salt]).encode()).hexdigest()
        self.commits[sha] = dict(files)
        return sha

    def ours(self) -> list[str]:
        return [name for name in self.branches if name.startswith("towline/")]


class Copy:
    """A workspace: its files, and a diff that is JSON."""

    def __init__(self, origin: Origin, base_sha: str) -> None:
        self.folder = Path("/nowhere")
        self.base_sha = base_sha
        self.origin = origin
        self.files = dict(origin.commits[base_sha])

    async def diff(self) -> bytes:
        base = self.origin.commits[self.base_sha]
        changed = {
            name: [base.get(name), text]
            for name, text in self.files.items()
            if base.get(name) != text
        }
        return json.dumps(changed).encode() if changed else b""

    async def apply(self, diff: bytes) -> None:
        for name, (before, after) in json.loads(diff).items():
            if self.files.get(name) != before:
                raise Rejected(f"{name} is not what the change was made for")
            self.files[name] = after

    async def commit(self, message: str) -> str:
        if self.files == self.origin.commits[self.base_sha]:
            raise Rejected("there is nothing to commit")
        return self.origin.commit(self.files, self.base_sha, message)


class Remote:
    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.opened: list[str] = []
        self.trouble: Callable[[str], None] = lambda call: None

    @asynccontextmanager
    async def open(self, forge: str, repo: str, ref: str) -> AsyncIterator[Workspace]:
        self.trouble("open")
        self.opened.append(ref)
        yield Copy(self.origin, self.origin.branches[ref])

    async def push(self, workspace: Workspace, branch: str, commit: str) -> str | None:
        self.trouble("push")
        if self.origin.branches.get(branch) == commit:
            return None
        self.origin.branches[branch] = commit
        self.origin.pushes.append((branch, commit))
        return commit

    async def aclose(self) -> None: ...


@dataclass
class Hub:
    """A forge: one open pull request for each branch, whoever asks."""

    log: str = BROKEN
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=lambda: {"octocat": "write"})
    asked: list[str] = field(default_factory=list)
    name: str = "github"
    trouble: Callable[[str], None] = lambda call: None
    asleep: Callable[[], Awaitable[None]] | None = None
    """Whoever found no pull request sleeps before it asks for one."""

    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        self.trouble("failure_log")
        self.asked.append(f"log of {check.name}")
        return self.log

    async def permission(self, repo: str, login: str) -> str:
        return self.roles.get(login, "none")

    async def look(self, refs: Sequence[PullRef]) -> dict[PullRef, Snapshot]:
        found = {}
        for ref in refs:
            if (pull := self.pulls.get(ref.number)) is not None:
                shown = PullRequestChanged(
                    source="github", repo=ref.repo, number=ref.number, action="seen",
                    state=pull["state"], head_ref=pull["head"], base_ref=pull["base"],
                    head_sha="b" * 40, from_fork=pull.get("fork", False), url=pull["url"],
                )  # fmt: skip
                found[ref] = Snapshot(pull=shown)
        return found

    async def default_branch(self, repo: str) -> str:
        return "main"

    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        self.trouble("find_pull")
        for number, pull in self.pulls.items():
            if (pull["head"], pull["base"]) == (head, base):
                return Opened(number, pull["url"], created=False)
        return None

    async def open_pull(self, new: NewPull, still: Callable[[], None]) -> Opened:
        self.trouble("open_pull")
        for number, pull in self.pulls.items():
            if pull["head"] == new.head and pull["state"] == "open":
                return Opened(number, pull["url"], created=False)
        if self.asleep is not None:
            await self.asleep()
        still()
        number = len(self.pulls) + 1
        url = f"https://forge.example/{new.repo}/pull/{number}"
        self.pulls[number] = {**new._asdict(), "state": "open", "url": url}
        return Opened(number, url)

    def there_is(self, number: int, head: str, **about: Any) -> None:
        url = f"https://forge.example/{REPO}/pull/{number}"
        shown = {"head": head, "base": "main", "state": "open", "url": url, **about}
        self.pulls[number] = shown


class Tidier:
    """Mends `app.py`, if the log complains about it."""

    name = "tidier"

    def __init__(self) -> None:
        self.calls = 0
        self.writes: Mapping[str, str] = {"app.py": "mended\n"}

    def fits(self, errand: Errand, log: str) -> str | None:
        return "the log names app.py" if "app.py" in log or errand.cause != "failure" else None

    async def fix(self, plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        self.calls += 1
        assert isinstance(workspace, Copy)
        workspace.files.update(self.writes)
        return FixerReport("took the unused import out", "Take out an unused import", "1 fixed")


class Nowhere:
    warning: str | None = None

    async def check(self) -> None: ...

    async def run(self, command: Sequence[str], folder: Path, limits: Limits, **more: Any) -> Ran:
        return Ran(0, "")


@dataclass
class Examiner:
    """A stage that looks at the workspace, and leaves a mess behind."""

    end: StageEnd = field(default=StageEnd("passed", "fine"))
    calls: int = 0
    trouble: Callable[[str], None] = lambda call: None

    async def run(self, attempt: Attempt) -> StageEnd:
        self.trouble("run")
        self.calls += 1
        assert isinstance(attempt.workspace, Copy)
        assert attempt.diff == await attempt.workspace.diff() or "left behind" in str(
            attempt.workspace.files
        )
        attempt.workspace.files["cache.tmp"] = "left behind"
        return self.end


@dataclass
class World:
    origin: Origin = field(default_factory=Origin)
    hub: Hub = field(default_factory=Hub)
    tidier: Tidier = field(default_factory=Tidier)
    checks: dict[str, Examiner] = field(
        default_factory=lambda: {one: Examiner() for one in ("SAFETY", "SCANS", "VALIDATION")}
    )

    def __post_init__(self) -> None:
        self.remote = Remote(self.origin)
        self.origin.branches["main"] = self.origin.commit({"app.py": "broken\n"})
