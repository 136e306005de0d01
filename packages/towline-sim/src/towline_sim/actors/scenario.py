"""A repository with everybody who works on it: the usual cast, ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from towline_sim.actors.base import Habit
from towline_sim.actors.bots import ApproverBot, AutomergeBot, PolicyBot, Ruling
from towline_sim.actors.ci import Chances, Ci
from towline_sim.actors.jenkins import Jenkins
from towline_sim.github.entities import Protection, Pull, RepoOptions
from towline_sim.github.fault_dice import Outage
from towline_sim.github.world import World

AUTHOR: Final = "dependabot[bot]"
POLICY: Final = "policy-bot"
JENKINS: Final = "jenkins/build"
JOBS: Final = ("build", "test")
SHARED_FILE: Final = "requirements.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Customs:
    """How it goes here; all is well unless told otherwise."""

    repo: str = "octo-org/app"
    options: RepoOptions = field(default_factory=RepoOptions)
    up_to_date: bool = False
    ci: Chances = field(default_factory=dict)
    jenkins: Chances = field(default_factory=dict)
    rulings: Mapping[Ruling, float] = field(default_factory=lambda: {"pass": 1.0})
    outages: tuple[Outage, ...] = ()
    """Of Jenkins."""
    policy_as_check: bool = False
    policy: Habit = field(default_factory=Habit)
    approver: Habit = field(default_factory=Habit)
    automerge: Habit = field(default_factory=Habit)
    announces: str | None = None
    updates_branches: bool = False


class Town:
    def __init__(self, seed: int = 0, customs: Customs | None = None, now: float = 1.7e9) -> None:
        self.customs = given = customs or Customs()
        self.repo = given.repo
        self.world = world = World(now, seed)
        self.add_repo(given.repo)
        needs = (*JOBS, JENKINS)
        self.ci = Ci(world, jobs=JOBS, chances=given.ci)
        self.jenkins = Jenkins(world, context=JENKINS, chances=given.jenkins, outages=given.outages)
        self.policy = PolicyBot(
            world,
            needs=needs,
            context=POLICY,
            as_check=given.policy_as_check,
            chances=given.rulings,
            habit=given.policy,
        )
        self.approver = ApproverBot(world, policy=POLICY, habit=given.approver)
        self.automerge = AutomergeBot(
            world,
            needs=(*needs, POLICY),
            announces=given.announces,
            updates_branches=given.updates_branches,
            habit=given.automerge,
        )

    def add_repo(self, name: str) -> None:
        """One more, where the same people and bots work by the same rules."""
        files = {"README.md": b"# app\n", SHARED_FILE: b"alpha==1\nbeta==1\ngamma==1\n"}
        self.world.create_repo(name, files, options=self.customs.options)
        rules = Protection(
            required_checks=(*JOBS, JENKINS, POLICY),
            required_approvals=1,
            up_to_date=self.customs.up_to_date,
        )
        self.world.protect(name, "main", rules)
        self.world.set_permission(name, AUTHOR, "write")

    def open_fix(
        self, key: str, *, line: str | None = None, by: str = AUTHOR, repo: str | None = None
    ) -> Pull:
        """A pull request for this vulnerability. Two that change the same `line` conflict."""
        world, branch, repo = self.world, f"towline/{key.lower()}", repo or self.repo
        tip = world.branch(repo, "main")
        changes: dict[str, bytes | None] = {f"fixes/{key.lower()}.txt": f"{key}\n".encode()}
        if line is not None:
            pinned = world.objects.content(world.files(repo, tip)[SHARED_FILE])
            old = next(one for one in pinned.decode().splitlines() if one.startswith(f"{line}=="))
            changes[SHARED_FILE] = pinned.replace(old.encode(), f"{line}==2+{key}".encode())
        world.create_ref(repo, f"refs/heads/{branch}", tip, by)
        world.write_files(repo, branch, changes, f"Fix {key}", by)
        return world.open_pull(
            repo, head=branch, base="main", title=f"Fix {key}", by=by, body=f"Fixes {key}."
        )
