"""Whether a pull request may be merged, merging it, and bringing its branch up to date."""

from __future__ import annotations

from typing import Literal

from towline.sim.entities import (
    PASSING,
    Mergeability,
    Pull,
    Review,
    User,
    WorldRefusal,
)
from towline.sim.world_base import RepoState
from towline.sim.world_pulls import WorldPulls
from towline.sim.world_refs import HEADS


class WorldMerging(WorldPulls):
    def mergeability(self, pull: Pull) -> Mergeability:
        """What the forge says of it, given what it knows by now."""
        if pull.merged or pull.mergeable is None:
            return Mergeability(pull.mergeable, "unknown")
        if not pull.mergeable:
            return Mergeability(False, "dirty")
        if pull.draft:
            return Mergeability(True, "draft")
        if self.blocked_by(pull) is not None:
            return Mergeability(True, "blocked")
        if self.must_catch_up(pull):
            return Mergeability(True, "behind")
        verdicts = self.verdicts(pull.repo, pull.head_sha).values()
        passing = all(verdict in PASSING for verdict in verdicts)
        return Mergeability(True, "clean" if passing else "unstable")

    def must_catch_up(self, pull: Pull) -> bool:
        """Its base asks for branches that are up to date, and this one is not."""
        rules = self.protection(pull.repo, pull.base_ref)
        return rules is not None and rules.up_to_date and self.behind(pull) > 0

    def blocked_by(self, pull: Pull) -> str | None:
        """The first rule of its base branch that is not met, in the forge's words."""
        rules = self.protection(pull.repo, pull.base_ref)
        if rules is None:
            return None
        verdicts = self.verdicts(pull.repo, pull.head_sha)
        missing = [name for name in rules.required_checks if verdicts.get(name) not in PASSING]
        if len(missing) > 1:
            of_all = f"{len(missing)} of {len(rules.required_checks)}"
            return f"{of_all} required status checks have not succeeded."
        for name in missing:
            said = verdicts.get(name, "expected")
            told = {"expected": "expected", "pending": "in progress"}.get(said, "failing")
            return f'Required status check "{name}" is {told}.'
        if rules.required_approvals == 0:
            return None
        standing = self.standing_reviews(pull)
        if any(review.state == "CHANGES_REQUESTED" for review in standing):
            return "Changes have been requested on this pull request."
        approvals = sum(review.state == "APPROVED" for review in standing)
        if approvals < rules.required_approvals:
            plural = "s are" if rules.required_approvals > 1 else " is"
            return (
                f"At least {rules.required_approvals} approving review{plural} required by "
                "reviewers with write access."
            )
        return None

    def standing_reviews(self, pull: Pull) -> list[Review]:
        """The newest verdict of each reviewer who may write; a mere comment takes none back."""
        newest = {
            review.author.login: review
            for review in self._state(pull.repo).reviews.get(pull.number, ())
            if review.state != "COMMENTED" and self.may(pull.repo, review.author.login, "write")
        }
        return [review for review in newest.values() if review.state != "DISMISSED"]

    # merging

    def merge_pull(
        self,
        repo: str,
        number: int,
        by: str,
        *,
        sha: str | None = None,
        method: Literal["merge", "squash", "rebase"] = "merge",
        title: str | None = None,
        message: str | None = None,
    ) -> str:
        """The commit that it became."""
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        self._must(repo, by, "write")
        self._may_merge(held, pull, sha)
        base = held.refs[HEADS + pull.base_ref]
        owner = pull.head_repo.partition("/")[0]
        told = title or f"Merge pull request #{number} from {owner}/{pull.head_ref}"
        said = f"{told}\n\n{message if message is not None else pull.title}"
        merged = self._merge_commit(base, pull.head_sha, said, who)
        if merged is None:
            raise WorldRefusal(405, "Pull Request is not mergeable")
        if method != "merge":
            tree = self.objects.facts(merged).tree
            merged = self._commit(tree, (base,), f"{title or pull.title} (#{number})", who)
        self._merged(held, pull, merged, who)
        self._move(held, HEADS + pull.base_ref, base, merged, who)
        self._drop_branch(held, pull, who)
        return merged

    def _may_merge(self, held: RepoState, pull: Pull, sha: str | None) -> None:
        if pull.merged or pull.state == "closed":
            raise WorldRefusal(405, "Pull Request is not mergeable")
        if sha is not None and sha != pull.head_sha:
            told = "Head branch was modified. Review and try the merge again."
            raise WorldRefusal(409, told)
        if pull.draft:
            raise WorldRefusal(405, "Pull Request is still a draft")
        settled = held.moved_at.get(HEADS + pull.base_ref, 0.0) + held.repo.options.base_settles
        if self.now < settled:
            told = "Base branch was modified. Review and try the merge again."
            raise WorldRefusal(405, told)
        if self.conflicts(pull):
            raise WorldRefusal(405, "Pull Request is not mergeable")
        reason = self.blocked_by(pull)
        if reason is None and self.must_catch_up(pull):
            reason = "Head branch is out of date. Review and try the merge again."
        if reason is not None:
            raise WorldRefusal(405, reason)

    def _drop_branch(self, held: RepoState, pull: Pull, by: User) -> None:
        ref = HEADS + pull.head_ref
        if held.repo.options.delete_branch_on_merge and not pull.from_fork and ref in held.refs:
            self._move(held, ref, held.refs[ref], None, by)

    # catching up

    def update_branch(
        self, repo: str, number: int, by: str, *, expected_head_sha: str | None = None
    ) -> None:
        """Queued: the head moves later, or never, if something came in between."""
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        self._must(repo, by, "write")
        if pull.state == "closed":
            raise WorldRefusal(422, "Cannot update a pull request that is not open.")
        if expected_head_sha not in (None, pull.head_sha):
            raise WorldRefusal(422, "expected head sha didn’t match current head ref.")
        if self.behind(pull) == 0:
            raise WorldRefusal(422, "There are no new commits on the base branch.")
        if self.conflicts(pull):
            raise WorldRefusal(422, "merge conflict between base and head")
        delay = held.repo.options.update_branch_delay
        self.after_some(delay, lambda: self._catch_up(held, pull, who))

    def _catch_up(self, held: RepoState, then: Pull, by: User) -> None:
        pull = held.pulls.get(then.number, then)
        unchanged = (
            then.number in held.pulls and pull.state == "open" and pull.head_sha == then.head_sha
        )
        if not unchanged or self.behind(pull) == 0 or self.conflicts(pull):
            return
        said = f"Merge branch '{pull.base_ref}' into {pull.head_ref}"
        base = held.refs[HEADS + pull.base_ref]
        merged = self._merge_commit(pull.head_sha, base, said, by)
        if merged is not None:
            head = self._states[pull.head_repo]
            self._move(head, HEADS + pull.head_ref, pull.head_sha, merged, by)
