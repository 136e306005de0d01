"""What is said about a pull request: reviews, comments, reactions, labels, and dispatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from towline.sim.entities import (
    Comment,
    Pull,
    Reaction,
    ReactionContent,
    Review,
    ReviewEvent,
    ReviewVerdict,
    User,
    WorldRefusal,
)
from towline.sim.world_base import RepoState, not_found
from towline.sim.world_pulls import WorldPulls

_VERDICTS: Final[Mapping[ReviewEvent, ReviewVerdict]] = {
    "APPROVE": "APPROVED",
    "REQUEST_CHANGES": "CHANGES_REQUESTED",
    "COMMENT": "COMMENTED",
}
_MOST_COMMENT: Final = 65_536


class WorldTalk(WorldPulls):
    # reviews

    def review(
        self,
        repo: str,
        number: int,
        by: str,
        event: ReviewEvent,
        body: str = "",
        commit_id: str | None = None,
    ) -> Review:
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        if who == pull.author and event != "COMMENT":
            verb = "approve" if event == "APPROVE" else "request changes on"
            raise _unprocessable(f"Can not {verb} your own pull request")
        if event != "APPROVE" and not body:
            raise _unprocessable("Body cannot be blank")
        if commit_id is not None and not self.objects.is_commit(commit_id):
            raise WorldRefusal(422, f"No commit found for SHA: {commit_id}")
        review = Review(
            id=self._new_id(),
            repo=pull.repo,
            number=number,
            author=who,
            state=_VERDICTS[event],
            body=body,
            commit_id=commit_id or pull.head_sha,
            submitted_at=self.now,
            updated_at=self.now,
        )
        held.reviews.setdefault(number, []).append(review)
        self._tell_review(held, pull, review, "submitted", who)
        return review

    def reviews(self, repo: str, number: int) -> list[Review]:
        self._raw(repo, number)
        return list(self._state(repo).reviews.get(number, ()))

    def dismiss_review(
        self, repo: str, number: int, review_id: int, by: str, message: str = ""
    ) -> Review:
        for review in self.reviews(repo, number):
            if review.id == review_id:
                if review.state not in ("APPROVED", "CHANGES_REQUESTED"):
                    raise WorldRefusal(422, f"Can not dismiss a {review.state.lower()} review")
                held = self._state(repo)
                return self._dismiss(held, self._raw(repo, number), review, self.user(by))
        raise not_found()

    def _dismiss(self, held: RepoState, pull: Pull, review: Review, by: User) -> Review:
        gone = replace(review, state="DISMISSED", updated_at=self.now)
        reviews = held.reviews[pull.number]
        reviews[reviews.index(review)] = gone
        self._tell_review(held, pull, gone, "dismissed", by)
        return gone

    def _reviews_outdated(self, held: RepoState, pull: Pull, by: User) -> None:
        rules = held.protections.get(pull.base_ref)
        asked = rules is not None and rules.dismiss_stale_reviews
        if asked or held.repo.options.dismiss_stale_reviews:
            for review in list(held.reviews.get(pull.number, ())):
                if review.state == "APPROVED":
                    self._dismiss(held, pull, review, by)

    def _tell_review(
        self, held: RepoState, pull: Pull, review: Review, action: str, by: User
    ) -> None:
        shown = self._shown(held, pull)
        self._emit(pull.repo, "pull_request_review", action, by, pull=shown, review=review)

    # comments

    def comment(self, repo: str, number: int, by: str, body: str) -> Comment:
        held, pull = self._state(repo), self._raw(repo, number)
        _check_body(body)
        comment = Comment(
            id=self._new_id(),
            repo=pull.repo,
            number=number,
            author=self.user(by),
            body=body,
            created_at=self.now,
            updated_at=self.now,
        )
        held.comments_of.setdefault(number, []).append(comment.id)
        pull = self._put(held, replace(pull, comments=pull.comments + 1))
        self._put_comment(held, comment, "created", comment.author)
        return comment

    def comments(self, repo: str, number: int) -> list[Comment]:
        self._raw(repo, number)
        held = self._state(repo)
        return [held.comments[comment_id] for comment_id in held.comments_of.get(number, ())]

    def comment_by_id(self, repo: str, comment_id: int) -> Comment:
        found = self._state(repo).comments.get(comment_id)
        if found is None:
            raise not_found()
        return found

    def edit_comment(self, repo: str, comment_id: int, by: str, body: str) -> Comment:
        _check_body(body)
        comment = replace(self.comment_by_id(repo, comment_id), body=body, updated_at=self.now)
        self._put_comment(self._state(repo), comment, "edited", self.user(by))
        return comment

    def delete_comment(self, repo: str, comment_id: int, by: str) -> None:
        held, comment = self._state(repo), self.comment_by_id(repo, comment_id)
        self._put_comment(held, comment, "deleted", self.user(by))
        del held.comments[comment_id]
        held.comments_of[comment.number].remove(comment_id)
        pull = held.pulls[comment.number]
        self._put(held, replace(pull, comments=pull.comments - 1))

    def _put_comment(self, held: RepoState, comment: Comment, action: str, by: User) -> None:
        held.comments[comment.id] = comment
        pull = held.pulls[comment.number]
        self._emit(comment.repo, "issue_comment", action, by, pull=pull, comment=comment)

    def react(self, repo: str, comment_id: int, by: str, content: ReactionContent) -> Reaction:
        """The same one, if it is there; no hook is told."""
        comment, who = self.comment_by_id(repo, comment_id), self.user(by)
        for reaction in comment.reactions:
            if (reaction.user, reaction.content) == (who, content):
                return reaction
        reaction = Reaction(id=self._new_id(), user=who, content=content, created_at=self.now)
        held = self._state(repo)
        held.comments[comment_id] = replace(comment, reactions=(*comment.reactions, reaction))
        return reaction

    # labels

    def add_labels(self, repo: str, number: int, names: Sequence[str], by: str) -> Pull:
        held, pull = self._state(repo), self._raw(repo, number)
        for name in names:
            label = self.label(repo, name)
            if label not in pull.labels:
                pull = self._put(held, replace(pull, labels=(*pull.labels, label)))
                self._tell(held, pull, "labeled", self.user(by), label=label)
        return pull

    def remove_label(self, repo: str, number: int, name: str, by: str) -> Pull:
        held, pull = self._state(repo), self._raw(repo, number)
        gone = next((label for label in pull.labels if label.name.lower() == name.lower()), None)
        if gone is None:
            raise WorldRefusal(404, "Label does not exist")
        kept = tuple(label for label in pull.labels if label != gone)
        pull = self._put(held, replace(pull, labels=kept))
        self._tell(held, pull, "unlabeled", self.user(by), label=gone)
        return pull

    def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object], by: str) -> None:
        self._must(repo, by, "write")
        self._emit(
            repo,
            "repository_dispatch",
            event_type,
            self.user(by),
            dispatch_type=event_type,
            dispatch_payload=payload,
        )


def _check_body(body: str) -> None:
    if not body.strip():
        raise _unprocessable("Body cannot be blank")
    if len(body) > _MOST_COMMENT:
        raise _unprocessable(f"Body is too long (maximum is {_MOST_COMMENT} characters)")


def _unprocessable(told: str) -> WorldRefusal:
    return WorldRefusal(422, "Unprocessable Entity", ({"message": told},))
