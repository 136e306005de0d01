"""Which deliveries may share one job."""

from __future__ import annotations

import pytest

from towline.events import (
    CheckChanged,
    CommandGiven,
    Commented,
    Event,
    InstallationChanged,
    IssueChanged,
    MergeGroupChanged,
    Pinged,
    PullRequestChanged,
    Pushed,
    ReviewSubmitted,
    Ticked,
)
from towline.inbox.ingest import subject_of

SHA, OTHER = "a" * 40, "b" * 40


def pull(
    number: int = 7, action: str = "opened", repo: str = "o/n", head_sha: str | None = None
) -> PullRequestChanged:
    return PullRequestChanged(
        source="github", repo=repo, number=number, action=action, state="open", head_sha=head_sha
    )


def check(sha: str | None = SHA, repo: str | None = "o/n", name: str = "build") -> CheckChanged:
    return CheckChanged(
        source="github",
        repo=repo,
        check="check_run",
        name=name,
        status="completed",
        conclusion="failure",
        head_sha=sha,
    )


def test_one_pull_request_is_one_subject() -> None:
    """Whatever happened to it, and whatever its head is."""
    changes = [pull(action="opened", head_sha=SHA), pull(action="synchronize", head_sha=OTHER)]
    assert {subject_of([change]) for change in changes} == {"github:o/n#7"}


def test_the_checks_of_one_commit_are_one_subject() -> None:
    """Of whatever name; and a delivery may tell of several."""
    assert subject_of([check(name="build")]) == subject_of([check(name="lint")])
    assert subject_of([check(), check(name="lint")]) == f"github:o/n@{SHA}"


def test_different_things_are_different_subjects() -> None:
    """Another number, repository, commit or forge is another subject; none is like another."""
    others: list[Event] = [
        pull(7),
        pull(8),
        pull(7, repo="o/m"),
        check(SHA),
        check(OTHER),
        check(SHA, repo="o/m"),
    ]
    subjects = [subject_of([event]) for event in others]
    assert None not in subjects
    assert len(set(subjects)) == len(others)


def test_two_forges_with_one_name_are_two() -> None:
    """A repository of GitLab is not that of GitHub which is called the same."""
    theirs = PullRequestChanged(source="gitlab", repo="o/n", number=7, action="x", state="open")
    assert subject_of([theirs]) != subject_of([pull(7)])


@pytest.mark.parametrize(
    "event",
    [
        CommandGiven(source="slack", command="/tow", text="rebuild", user="U"),
        Commented(source="github", repo="o/n", number=7, action="created", comment_id="1"),
        ReviewSubmitted(source="github", repo="o/n", number=7, state="approved"),
        Pushed(source="github", repo="o/n", ref="refs/heads/x", before=None, after=SHA),
        MergeGroupChanged(source="github", repo="o/n", action="destroyed", head_sha=SHA),
        Pinged(source="github", repo="o/n"),
        InstallationChanged(source="github", action="created", installation_id="1"),
        IssueChanged(source="jira", issue="A-1", action="updated"),
        Ticked(source="scheduler", schedule_id="a", execution_time="2024-12-19T00:00:00Z"),
        check(sha=None),
        check(repo=None),
    ],
    ids=lambda event: event.kind,
)
def test_what_is_acted_on_by_itself(event: Event) -> None:
    """What a person says or orders, and what has no commit to look at, never waits together."""
    assert subject_of([event]) is None
    assert subject_of([event, check()]) is None
    assert subject_of([check(), event, pull()]) is None


def test_of_two_things_or_none_there_is_no_subject() -> None:
    """A delivery that tells of two things belongs to neither; one that tells nothing, nowhere."""
    assert subject_of([check(SHA), check(OTHER)]) is None
    assert subject_of([pull(7), check(SHA)]) is None
    assert subject_of([]) is None
