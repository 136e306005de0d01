"""What must be true after a storm: the records against what the simulated world knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.reconciler.tow_ledger import Key
from tests.reconciler.tow_rig import CHECKS, OURS
from tests.reconciler.tow_storm import BUILD, JENKINS, POLICY, REPOS, Storm
from towline.pulls.budgets import LIFETIME_FACTOR, MAX_TRIES, STRATEGIES
from towline.pulls.model import PullEvent, PullRecord
from towline.remediation.strategies import OUTCOME, REMEDIES
from towline_sim.failure_logs import PERSISTENT
from towline_sim.github.entities import PASSING, Pull
from towline_sim.github.world import World


class Found(NamedTuple):
    """One pull request, as it is in the world and as it is recorded."""

    storm: Storm
    pull: Pull
    record: PullRecord
    events: Sequence[PullEvent]

    @property
    def world(self) -> World:
        return self.storm.world

    @property
    def key(self) -> Key:
        return self.pull.repo, self.pull.number

    def verdicts(self) -> dict[str, str]:
        return self.world.verdicts(self.pull.repo, self.pull.head_sha)

    def builds(self) -> dict[str, str]:
        needed = (BUILD,) if self.pull.repo == JENKINS else CHECKS
        said = self.verdicts()
        return {name: said.get(name, "missing") for name in needed}

    def is_green(self) -> bool:
        return all(verdict in PASSING for verdict in self.builds().values())

    def has_failed(self) -> bool:
        return any(
            verdict not in (*PASSING, "missing", "pending") for verdict in self.builds().values()
        )

    def logs(self) -> str:
        """Of all that ever ran for its head."""
        if self.pull.repo == JENKINS:
            built = self.storm.jenkins.builds.values()
            return "\n".join(one.log for one in built if one.sha == self.pull.head_sha)
        runs = self.world.workflow_runs(self.pull.repo, head_sha=self.pull.head_sha)
        jobs = [job for run in runs for job in self.world.jobs(self.pull.repo, run.id)]
        return "\n".join(job.log for job in jobs)

    def approved(self) -> bool:
        return any(one.state == "APPROVED" for one in self.world.standing_reviews(self.pull))

    def policy(self) -> str:
        return self.verdicts().get(POLICY, "missing")

    def policy_says(self) -> str:
        statuses = self.world.statuses(self.pull.repo, self.pull.head_sha)
        said = [one.description or "" for one in statuses if one.context == POLICY]
        runs = self.world.runs(self.pull.repo, self.pull.head_sha)
        said += [run.title or "" for run in runs if run.name == POLICY]
        return said[0] if said else ""

    def made(self, strategy: str) -> int:
        return sum(
            count
            for (key, name), count in self.storm.ledger.made.items()
            if (key, name) == (self.key, strategy)
        )

    def payload(self, event_type: str) -> Mapping[str, object]:
        return next(one.payload for one in self.events if one.event_type == event_type)


def _persistent(found: Found) -> bool:
    return any(text in found.logs() for text in PERSISTENT)


WHY: Final[Mapping[str, Callable[[Found], bool]]] = {
    "merge_conflict": lambda found: found.world.conflicts(found.pull),
    "branch_behind": lambda found: found.world.behind(found.pull) > 0,
    "checks_transient": lambda found: found.has_failed() and not _persistent(found),
    "checks_persistent": lambda found: found.has_failed() and _persistent(found),
    "policy_bot_stale": lambda found: found.is_green() and found.policy() not in PASSING,
    "policy_failed_sod": lambda found: "SOD" in found.policy_says(),
    "policy_failed_other": lambda found: (
        found.policy() == "failure" and "SOD" not in found.policy_says()
    ),
    "approver_bot_stale": lambda found: found.policy() in PASSING and not found.approved(),
    "automerge_bot_stale": lambda found: found.is_green() and found.approved(),
    "CREATED": lambda found: "missing" in found.builds().values(),
    "CHECKS_RUNNING": lambda found: not found.is_green() and not found.has_failed(),
    "MERGING": lambda found: found.is_green() and found.approved(),
}
"""Why it did not merge, by the rule that gave it to a person; for the last rule, by its state."""


async def audit(storm: Storm) -> list[str]:
    """Everything that is not as it should be."""
    wrong: list[str] = []
    for repo in REPOS:
        for pull in storm.world.pulls(repo, state="all"):
            record = await storm.pulls.read(repo, pull.number)
            if record is None:
                wrong += [f"{repo}#{pull.number}: {why}" for why in unknown(storm, pull)]
                continue
            events = await storm.pulls.events(repo, pull.number, most=5000)
            found = Found(storm, pull, record, events)
            why = [*ended_wrongly(found), *overdone(found), *told_wrongly(found)]
            wrong += [f"{repo}#{pull.number} {record.state}: {one}" for one in why]
    return [*wrong, *replaced_wrongly(storm)]


def unknown(storm: Storm, pull: Pull) -> list[str]:
    """Nobody told of it, nobody saw it open, and others brought it to its end."""
    key = (pull.repo, pull.number)
    ledger = storm.ledger
    if key not in ledger.ended:
        return ["open and not under tow"]
    wrong = []
    if not pull.merged and ledger.ended_by[key] == OURS:
        wrong.append("closed by us and not under tow")
    if any(count for (made_for, _), count in ledger.made.items() if made_for == key):
        wrong.append("acted upon and not under tow")
    if key in storm.opened_heard:
        wrong.append("its opening was heard of")
    opened, ended = ledger.opened[key], ledger.ended[key]
    if any(opened < began and done < ended for began, done in storm.listed):
        wrong.append("it was open while all open ones were looked at")
    return wrong


def ended_wrongly(found: Found) -> list[str]:
    pull, record = found.pull, found.record
    if record.intent is not None:
        return ["a remedy is still under way"]
    if pull.merged:
        return [] if record.state == "MERGED" else ["it is merged"]
    if pull.state == "closed":
        return _closed_wrongly(found)
    if record.state != "NEEDS_INTERVENTION":
        return ["it is open"]
    told = found.payload("ESCALATED_NEEDS_INTERVENTION")
    rule = str(told["rule"])
    name = str(told["from"]) if rule == "fallthrough" else rule
    if name not in WHY or WHY[name](found):
        return [] if name in WHY else [f"{name} is no reason"]
    return [f"escalated as {name} ({told['reason']}): {found.builds()}, {found.policy()}"]


def _closed_wrongly(found: Found) -> list[str]:
    if found.record.state != "CLOSED":
        return ["it is closed"]
    replaced = found.record.substatus == "REPLACED"
    if replaced != (found.storm.ledger.ended_by[found.key] == OURS):
        return ["closed by us and not replaced, or the other way round"]
    if replaced and not found.storm.ledger.closed_in_conflict[found.key]:
        return ["closed by us without a conflict"]
    return []


def overdone(found: Found) -> list[str]:
    """What arrived at the world against the budgets and what was written down before."""
    wrong: list[str] = []
    if found.storm.ledger.merges[found.key] > 1:
        wrong.append("merged twice")
    for strategy in STRATEGIES:
        most = MAX_TRIES[strategy]
        tried = [one for one in found.events if one.event_type == REMEDIES[strategy].event_type]
        made, lifetime = found.made(strategy), found.record.lifetime[strategy]
        if made > len(tried):
            wrong.append(f"{strategy} arrived {made} times, begun {len(tried)} times")
        if made > lifetime + _not_known(found, strategy):
            wrong.append(f"{strategy} arrived {made} times, counted {lifetime}")
        if lifetime > most * LIFETIME_FACTOR or found.record.counts[strategy] > most:
            wrong.append(f"{strategy} is over its budget")
        if any(int(str(one.payload["attempt"])) > most for one in tried):
            wrong.append(f"{strategy} was tried more than {most} times in a row")
    return wrong


def _not_known(found: Found, strategy: str) -> int:
    """Of how many nobody could tell whether they arrived: their tries were given back."""
    return sum(
        one.event_type == OUTCOME
        and one.payload["strategy"] == strategy
        and one.payload["outcome"] == "unavailable"
        and not one.key.endswith("so far")
        for one in found.events
    )


def told_wrongly(found: Found) -> list[str]:
    """A line of the log for each end, and one message for each escalation."""
    lines = Counter(event.event_type for event in found.events)
    wrong = []
    if lines["MERGE_SUCCEEDED"] + lines["PR_MERGED"] > 1:
        wrong.append("its merge was told twice")
    name = f"{found.pull.repo}#{found.pull.number}"
    told = sum(name in title.split() for title, _ in found.storm.told.messages)
    allowed = lines["ESCALATED_NEEDS_INTERVENTION"]
    sent = lines["ESCALATION_SENT"]
    ended = found.record.state in ("MERGED", "CLOSED")
    if sent < allowed and not ended:
        wrong.append("nobody was told of an escalation")
    if told > allowed + found.storm.died:
        wrong.append(f"people were told {told} times of {allowed} escalations")
    return wrong


def replaced_wrongly(storm: Storm) -> list[str]:
    """At most one replacement for each vulnerability, and one alive at a time."""
    titles: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    for repo in REPOS:
        for pull in storm.world.pulls(repo, state="all"):
            titles[pull.title] += 1
            alive[pull.title] += pull.state == "open"
    wrong = [f"{title}: {count} pull requests" for title, count in titles.items() if count > 2]
    wrong += [f"{title}: {count} open" for title, count in alive.items() if count > 1]
    closed = sum(
        count for (_, name), count in storm.ledger.made.items() if name == "close_and_reopen"
    )
    fresh = sum(count - 1 for count in titles.values())
    if closed != fresh:
        wrong.append(f"{closed} were closed for a fresh one, and {fresh} were opened")
    return wrong
