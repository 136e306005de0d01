"""Settings of the pollers: what is read from time to time, as no webhook tells of it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from towline.config.values import Count, RepoNames, Seconds, Table


def _jql(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("JQL is one line of text")
    if re.search(r"\border\s+by\b", text, re.IGNORECASE):
        raise ValueError("leave ORDER BY out of the JQL: the order is the poller's own")
    return text


GITLAB_OVERLAP_SECONDS = 60
"""GitLab moves the time of a merge request once a minute at most, however much is said there."""


class JiraQuerySettings(Table):
    """Issues to look for."""

    jql: Annotated[str, AfterValidator(_jql)]
    """Finds issues, without `ORDER BY`; needs `jira.url` and `jira.token`."""


class PollingSettings(Table):
    """What is read, how often, and how far back each time."""

    every_seconds: Seconds = 60
    """How often each of these sources is read."""
    overlap_seconds: Seconds = 120
    """How far before its watermark a reading begins; more than the server's clocks differ by.

    At least 60 if `polling.gitlab` names a project."""
    max_pages: Count = 50
    """How many pages of 100 are read at a time; the rest follows with the next reading."""
    gitlab: RepoNames = ()
    """Projects whose merge requests and notes are read; needs `gitlab.token`."""
    github: RepoNames = ()
    """Repositories whose pull requests and comments are read; needs `github.token` or an App."""
    jira: dict[str, JiraQuerySettings] = Field(default_factory=dict)


def needed(polling: PollingSettings, *, gitlab: bool, github: bool, jira: bool) -> str | None:
    """What is missing for what is to be polled; the flags say which can be asked."""
    if polling.gitlab and not gitlab:
        return "polling.gitlab needs gitlab.token"
    if polling.gitlab and polling.overlap_seconds < GITLAB_OVERLAP_SECONDS:
        return (
            f"polling.gitlab needs polling.overlap_seconds of at least {GITLAB_OVERLAP_SECONDS}: "
            "GitLab shows what is said within a minute of a change as if it were no change"
        )
    if polling.github and not github:
        return "polling.github needs github.token, or an App"
    if polling.jira and not jira:
        return "polling.jira needs jira.url and jira.token"
    return None
