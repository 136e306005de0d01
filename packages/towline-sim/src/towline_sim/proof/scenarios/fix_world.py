"""What fix runs meet in a play: a repository, a forge, a fixer and checks, behind wires."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from towline.events import CheckChanged, PullRequestChanged
from towline.fix.attempt import Attempt, StageEnd
from towline.fix.fixers.base import FixerReport, Plan
from towline.fix.model import Errand
from towline.fix.pipeline import _digest
from towline.forges.base import GitAccess
from towline.forges.snapshot import PullRef, Snapshot
from towline.git.command import GitEnd
from towline.git.repository import GitOptions, GitRepositories, Locks
from towline.git.workspace import RepositoryUnavailable, Workspace
from towline.git.worktree import Author, Origin, Worktree
from towline.sandbox.base import Limits, Ran, Sandbox
from towline_once.errors import NotIsolated, Rejected, Transient
from towline_sim.proof.bodies import Bodies
from towline_sim.proof.fault_schedule import WORK
from towline_sim.proof.harness import Stage
from towline_sim.proof.invariants.runs import RunWatch
from towline_sim.proof.loop import WORLD, Node, current, never
from towline_sim.proof.wire import Wire

REPO: Final = "octo-org/app"
LOG: Final = "app.py:1:1: F401 unused import\nFound 1 error."
_AUTHOR: Final = Author()
_NOWHERE: Final = Path("/nowhere/tree")


@dataclass
class Pull:
    number: int
    head: str
    base: str
    state: str = "open"

    @property
    def shown(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "html_url": f"https://forge.example/{REPO}/pull/{self.number}",
            "head": {"ref": self.head, "repo": {"full_name": REPO}},
            "base": {"ref": self.base},
        }


@dataclass
class FixWorld:
    """The far side: what was pushed and opened there stays."""

    stage: Stage
    watch: RunWatch
    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    pulls: list[Pull] = field(default_factory=list)
    fates: dict[tuple[str, str], float] = field(default_factory=dict)
    proposing: dict[Node, int] = field(default_factory=dict)
    """How often each node had slept when it was given the right to propose."""
    isolated: set[str] = field(default_factory=set)
    """The runs for which a person has seen to it that the machines isolate."""

    def __post_init__(self) -> None:
        self.pushers = Bodies(self.stage)
        self.branches["main"] = self.commit({"app.py": "broken\n"})

    def commit(self, files: Mapping[str, str], *salt: str) -> str:
        text = orjson.dumps([sorted(files.items()), *salt])
        sha = hashlib.sha256(text).hexdigest()[:40]
        self.commits[sha] = dict(files)
        return sha

    def move_main(self, n: int) -> None:
        """Another author's commit."""
        files = self.commits[self.branches["main"]] | {"other.py": f"{n}\n"}
        self.branches["main"] = self.commit(files, str(n))

    def fate(self, run_key: str, what: str) -> float:
        """How this goes for this run, whichever node tries."""
        return self.fates.setdefault((run_key, what), self.stage.dice.random())

    def lacks_isolation(self, run_key: str) -> bool:
        """Whether its checks are refused: by the key, so that no seed's luck depends on it."""
        return int(run_key[:4], 16) % 5 == 1 and run_key not in self.isolated

    def create(self, head: str, base: str) -> Pull | None:
        """None where GitHub answers 422."""
        stage, node = self.stage, current.get()
        if head not in self.branches:
            stage.violation(f"a pull request for {head}, which was not pushed")
        if any(one.head == head and one.state == "open" for one in self.pulls):
            return None
        slept = stage.jumped or node is WORLD  # what arrives late belongs to no node any more
        slept = slept or self.proposing.get(node, node.pauses) != node.pauses
        before = [one.number for one in self.pulls if one.head == head]
        stage.expect(slept or not before, f"{head} has the pull requests {before} and one more")
        rivals = [one.head for one in self.pulls if one.state == "open" and self._beside(one, head)]
        late = node is WORLD
        stage.expect(late or not rivals, f"{head} is proposed beside {rivals}")
        pull = Pull(len(self.pulls) + 1, head, base)
        self.pulls.append(pull)
        stage.tell(node, f"opened {pull.number} from {head}")
        return pull

    def _beside(self, pull: Pull, head: str) -> bool:
        """Whether both are for one thing."""
        subjects = {run.branch: run.subject for run in self.watch.runs.values()}
        return subjects[pull.head] == subjects[head] and pull.head != head


# ---------------------------------------------------------------------- git


class SimCache:
    """The remote, as git reaches it from a node."""

    def __init__(self, world: FixWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire
        self.access = GitAccess(f"https://forge.example/{REPO}.git", "git", "")

    async def head_of(self, branch: str) -> str | None:
        return await self._wire.call("ls-remote", lambda: self._world.branches.get(branch))

    async def committer_of(self, branch: str, seen: str, mine: str) -> str:
        return _AUTHOR.email

    async def push(self, branch: str, commit: str, expected: str | None) -> GitEnd:
        def there() -> GitEnd:
            if self._world.branches.get(branch) != expected:
                return GitEnd(1, b"", "stale info")
            self._world.branches[branch] = commit
            return GitEnd(0, b"", "")

        with self._world.pushers.at_work("a push"):
            await asyncio.sleep(self._world.stage.dice.choice([0.5, 3.0, 8.0]))
            return await self._wire.call("push", there)


class SimTree(Worktree):
    """A workspace: its files, and a diff that is JSON."""

    def __init__(self, cache: SimCache, world: FixWorld, ref: str, base_sha: str) -> None:
        self.cache = cache  # type: ignore[assignment]
        self.folder = _NOWHERE
        self.base_sha = base_sha
        self.origin = Origin("github", REPO, ref)
        self._world = world
        self.files = dict(world.commits[base_sha])

    async def diff(self) -> bytes:
        base = self._world.commits[self.base_sha]
        changed = {n: [base.get(n), t] for n, t in self.files.items() if base.get(n) != t}
        return orjson.dumps(changed) if changed else b""

    async def apply(self, diff: bytes) -> None:
        for name, (before, after) in orjson.loads(diff).items():
            if self.files.get(name) != before:
                raise Rejected(f"{name} is not what the change was made for")
            self.files[name] = after

    async def commit(self, message: str) -> str:
        return self._world.commit(self.files, self.base_sha, message)


class SimRepositories(GitRepositories):
    """The product's way to push, with another git behind it."""

    def __init__(self, world: FixWorld, wire: Wire, locks: Locks, publishers: Any) -> None:
        self._options = GitOptions(author=_AUTHOR, lock_seconds=6.0, lock_wait_seconds=20.0)
        self._publishers = publishers
        self._locks = locks
        self._world = world
        self._wire = wire

    @asynccontextmanager
    async def open(self, forge: str, repo: str, ref: str) -> AsyncIterator[Workspace]:
        base = await self._wire.call("fetch", lambda: self._world.branches[ref])
        yield SimTree(SimCache(self._world, self._wire), self._world, ref, base)


def git_wire(stage: Stage, node: Node) -> Wire:
    return stage.wire(node, stage.parts["git"], unavailable=RepositoryUnavailable)


# ---------------------------------------------------------------------- the forge


class Said:
    """An answer of the API."""

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.says = "Validation Failed" if status >= 400 else ""
        self._body = body

    def json(self) -> Any:
        return self._body


class SimAccess:
    """GitHub's API as far as pull requests go."""

    def __init__(self, world: FixWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def get(
        self, repo: str, path: str, about: str, *, query: Mapping[str, str], also: Any = ()
    ) -> Said:
        head = query["head"].partition(":")[2]

        def there() -> Said:
            wanted = [one for one in reversed(self._world.pulls) if one.head == head]
            if query["state"] != "all":
                wanted = [one for one in wanted if one.state == query["state"]]
            return Said(200, [one.shown for one in wanted])

        return await self._wire.call("find pull", there)

    async def write(
        self, repo: str, method: str, path: str, about: str, told: Any, *, also: Any = ()
    ) -> Said:
        if path.endswith("/labels"):
            return await self._wire.call("label", lambda: Said(200, []))

        def there() -> Said:
            pull = self._world.create(told["head"], told["base"])
            return Said(422, {}) if pull is None else Said(201, pull.shown)

        await self._busy()
        said = await self._wire.call("open pull", there)
        await self._busy()
        return said

    async def _busy(self) -> None:
        """A node may die or fall asleep with its pull request written down and not noted."""
        stage, node = self._world.stage, current.get()
        fault = stage.weather.at(node, "work", WORK)
        if fault is None:
            return
        stage.tell(node, f"about its pull request: {fault.kind} {fault.seconds:.3f}")
        if fault.kind == "crash before":
            stage.loop.crash(node)
            await never()
        stage.loop.pause(node, fault.seconds)
        await asyncio.sleep(0.001)


class SimForge:
    """What a run asks of its forge; nothing here is ever merged by us."""

    name = "github"

    def __init__(self, world: FixWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        return await self._wire.call("log", lambda: LOG)

    async def look(self, refs: Sequence[PullRef]) -> dict[PullRef, Snapshot]:
        return await self._wire.call("look", lambda: {ref: self._seen(ref) for ref in refs})

    def _seen(self, ref: PullRef) -> Snapshot:
        pull = self._world.pulls[ref.number - 1]
        state: Any = pull.state
        return Snapshot(
            pull=PullRequestChanged(
                source="github", repo=ref.repo, number=ref.number, action="seen", state=state,
                head_ref=pull.head, base_ref=pull.base, head_sha="b" * 40, from_fork=False,
            )
        )  # fmt: skip

    async def merge(self, *_: Any) -> None:
        self._world.stage.violation("the pipeline merges")


# ---------------------------------------------------------------------- who works on it


class SimFixer:
    name = "tidier"

    def __init__(self, world: FixWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    def fits(self, errand: Errand, log: str) -> str | None:
        return "the log names app.py"

    async def fix(self, plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        await asyncio.sleep(self._world.stage.dice.choice([0.0, 1.0, 5.0]))
        await self._wire.call("fixer", lambda: None)
        if isinstance(workspace, SimTree):
            workspace.files["app.py"] = f"mended for {plan.errand.check}\n"
        return FixerReport("took the unused import out", "Take out an unused import")


class Examiner:
    """A check in the sandbox. It notices when it is asked what was settled before."""

    def __init__(self, world: FixWorld, wire: Wire, stage: Any) -> None:
        self._world = world
        self._wire = wire
        self._stage = stage

    async def run(self, attempt: Attempt) -> StageEnd:
        world, run_key = self._world, attempt.run.run_key
        known = world.watch.runs[run_key]
        if known.token == attempt.token:
            digest = world.watch.passed.get((run_key, self._stage))
            again = digest == _digest(attempt, self._stage)
            world.stage.expect(not again, f"{self._stage} of {run_key[:6]} is repeated")
            refused = run_key in world.watch.refused
            world.stage.expect(not refused, f"{run_key[:6]} was refused and goes on")
        await asyncio.sleep(world.stage.dice.choice([0.0, 0.5, 3.0]))
        await self._wire.call(f"check {self._stage}", lambda: None)
        if self._stage == "VALIDATION" and world.lacks_isolation(run_key):
            raise NotIsolated("nothing isolates here", "install bubblewrap")
        if world.stage.dice.random() < 0.08 and not world.stage.weather.calm:
            raise Transient("the machine is too busy")
        if world.fate(run_key, self._stage) < 0.08:
            return StageEnd("refused", "it is not good enough")
        return StageEnd("passed", "fine")


class Nowhere:
    warning: str | None = None

    async def check(self) -> None: ...

    async def run(self, command: Sequence[str], folder: Path, limits: Limits, **more: Any) -> Ran:
        return Ran(0, "")
