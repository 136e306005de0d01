"""The bots between green checks and a merge: policy, approver, automerge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from towline_sim.actors.base import Actor, Habit, Poke, all_pass, poked, pulls_about
from towline_sim.github.entities import Emitted, Pull, RunConclusion, StatusState, WorldRefusal
from towline_sim.github.fault_dice import Seconds
from towline_sim.github.world import World

Ruling: TypeAlias = Literal["pass", "sod", "sod_for_good", "build", "other", "stuck"]
"""`sod` is not met at first, and is met when it is looked at again; `stuck` never ends."""

_WORDS: Final[Mapping[Ruling, str]] = {
    "pass": "All policies are met",
    "sod": "SOD validation failed: the author may not be the approver",
    "sod_for_good": "SOD validation failed: the author may not be the approver",
    "build": "The Jenkins build policy is not met",
    "other": "Approval of the owners of two files is missing",
    "stuck": "Evaluating",
}


class PolicyBot(Actor):
    """Evaluates a head when all that it needs has passed, and again when it is poked."""

    def __init__(
        self,
        world: World,
        *,
        needs: tuple[str, ...],
        context: str = "policy-bot",
        as_check: bool = False,
        chances: Mapping[Ruling, float] | None = None,
        rulings: Mapping[tuple[str, int], Ruling] | None = None,
        poke: Poke | None = None,
        takes: Seconds = (5.0, 60.0),
        habit: Habit | None = None,
    ) -> None:
        super().__init__(world, "policy-bot[bot]", habit)
        self.needs = needs
        self.context = context
        self.as_check = as_check
        self.chances: dict[Ruling, float] = {"pass": 1.0} if chances is None else dict(chances)
        self.rulings: dict[tuple[str, int], Ruling] = dict(rulings or {})
        self.poke = poke or Poke(label="recheck-policy", comment="/policy", dispatch="policy")
        self.takes = takes
        self._considered: set[tuple[str, int, str]] = set()
        self._seen: set[tuple[str, str]] = set()
        self._runs: dict[str, int] = {}

    def hear(self, told: Emitted) -> None:
        for pull in poked(self.world, told, self.poke, self._seen):
            if not self.misses(poked=True):
                self._evaluate_later(pull)
        if told.name not in ("status", "check_suite") or told.sender.login == self.login:
            return
        for pull in pulls_about(self.world, told):
            key = (pull.repo, pull.number, pull.head_sha)
            if key not in self._considered and all_pass(self.world, pull, self.needs):
                self._considered.add(key)
                if not self.misses():
                    self._evaluate_later(pull)

    def _evaluate_later(self, pull: Pull) -> None:
        self.later(lambda: self._begin(pull))

    def _begin(self, pull: Pull) -> None:
        now = self.current(pull)
        if now is None or not all_pass(self.world, now, self.needs):
            return
        self._say(pull, "pending", None, "Evaluating")
        ruling = self._ruling(pull)
        if ruling != "stuck":
            self.later(lambda: self._end(pull, ruling), self.takes)

    def _ruling(self, pull: Pull) -> Ruling:
        key = (pull.repo, pull.number)
        if key not in self.rulings:
            names, weights = list(self.chances), list(self.chances.values())
            self.rulings[key] = self.dice.choices(names, weights)[0]
        ruling = self.rulings[key]
        if ruling in ("sod", "stuck"):
            self.rulings[key] = "pass"
        return ruling

    def _end(self, pull: Pull, ruling: Ruling) -> None:
        passed = ruling == "pass"
        if self.current(pull) is not None:
            end: RunConclusion = "success" if passed else "failure"
            self._say(pull, "success" if passed else "failure", end, _WORDS[ruling])

    def _say(self, pull: Pull, state: StatusState, end: RunConclusion | None, words: str) -> None:
        repo, sha = pull.repo, pull.head_sha
        if not self.as_check:
            self.world.set_status(repo, sha, self.context, state, self.login, description=words)
        elif end is None:
            run = self.world.create_run(
                repo, sha, self.context, "policy-bot", status="in_progress", title=words
            )
            self._runs[sha] = run.id
        else:
            self.world.update_run(repo, self._runs[sha], conclusion=end, title=words)


class ApproverBot(Actor):
    """Approves what the policy bot has passed."""

    def __init__(
        self,
        world: World,
        *,
        policy: str = "policy-bot",
        login: str = "approver-bot[bot]",
        poke: Poke | None = None,
        habit: Habit | None = None,
    ) -> None:
        super().__init__(world, login, habit)
        self.policy = policy
        given = Poke(label="recheck-approval", comment="/approve", dispatch="approval")
        self.poke = poke or Poke(
            label=given.label, comment=given.comment, dispatch=given.dispatch, status=policy
        )
        self._considered: set[tuple[str, int, str]] = set()
        self._seen: set[tuple[str, str]] = set()

    def hear(self, told: Emitted) -> None:
        for pull in poked(self.world, told, self.poke, self._seen):
            if not self.misses(poked=True):
                self._approve_later(pull)
        if not self._is_policy(told):
            return
        for pull in pulls_about(self.world, told):
            key = (pull.repo, pull.number, pull.head_sha)
            if key not in self._considered and all_pass(self.world, pull, (self.policy,)):
                self._considered.add(key)
                if not self.misses():
                    self._approve_later(pull)

    def _is_policy(self, told: Emitted) -> bool:
        by_status = told.status is not None and told.status.context == self.policy
        return by_status or (told.run is not None and told.run.name == self.policy)

    def _approve_later(self, pull: Pull) -> None:
        self.later(lambda: self._approve(pull))

    def _approve(self, pull: Pull) -> None:
        now = self.current(pull)
        if now is not None and all_pass(self.world, now, (self.policy,)):
            self.world.set_permission(pull.repo, self.login, "write")
            self.world.review(
                pull.repo, pull.number, self.login, "APPROVE", "Policies are met.", pull.head_sha
            )


class AutomergeBot(Actor):
    """Merges what is approved and green; with a label first, if it announces itself."""

    def __init__(
        self,
        world: World,
        *,
        needs: tuple[str, ...],
        login: str = "automerge-bot[bot]",
        announces: str | None = None,
        updates_branches: bool = False,
        poke: Poke | None = None,
        habit: Habit | None = None,
    ) -> None:
        super().__init__(world, login, habit)
        self.needs = needs
        self.announces = announces
        self.updates_branches = updates_branches
        self.poke = poke or Poke(label="automerge", comment="/automerge", dispatch="merge")
        self.refusals: list[str] = []
        self._considered: set[tuple[str, int, str]] = set()
        self._seen: set[tuple[str, str]] = set()

    def hear(self, told: Emitted) -> None:
        for pull in poked(self.world, told, self.poke, self._seen):
            if not self.misses(poked=True):
                self._merge_later(pull)
        if told.name not in ("pull_request_review", "status", "check_suite"):
            return
        for pull in pulls_about(self.world, told):
            key = (pull.repo, pull.number, pull.head_sha)
            if key not in self._considered and self._ready(pull):
                self._considered.add(key)
                if not self.misses():
                    self._merge_later(pull)

    def _ready(self, pull: Pull) -> bool:
        approved = any(r.state == "APPROVED" for r in self.world.standing_reviews(pull))
        return approved and all_pass(self.world, pull, self.needs)

    def _merge_later(self, pull: Pull) -> None:
        self.later(lambda: self._announce(pull))

    def _announce(self, pull: Pull) -> None:
        if self.announces is None:
            self._merge(pull)
        elif self.current(pull) is not None:
            self.world.add_labels(pull.repo, pull.number, [self.announces], self.login)
            self.later(lambda: self._merge(pull), (1.0, 5.0))

    def _merge(self, pull: Pull) -> None:
        now = self.current(pull)
        if now is None or not self._ready(now):
            return
        self.world.set_permission(pull.repo, self.login, "write")
        try:
            self.world.merge_pull(pull.repo, pull.number, self.login, sha=pull.head_sha)
        except WorldRefusal as refusal:
            self._refused_merge(pull, refusal)

    def _refused_merge(self, pull: Pull, refusal: WorldRefusal) -> None:
        self.refusals.append(refusal.message)
        if refusal.message.startswith("Base branch was modified"):
            self._merge_later(pull)
        elif self.updates_branches and self.world.must_catch_up(pull):
            self.world.update_branch(
                pull.repo, pull.number, self.login, expected_head_sha=pull.head_sha
            )
