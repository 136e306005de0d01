"""Settings of the senders of webhooks, and of their interfaces."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from towline.config.values import HttpUrl, Seconds, Secret, SharedSecrets, Strings, Table


class SourceSettings(Table):
    """A sender of webhooks. All its secrets are valid at once, so that one can be changed."""

    webhook_secrets: SharedSecrets = ()
    """All are valid at once; each has at least 8 characters, and should have 32."""
    allow_unsigned: bool = False
    """Take deliveries without a signature if there is no secret; for closed networks only."""


class GitHubSettings(SourceSettings):
    """GitHub: its API, and the hooks whose delivery log is compared with the inbox."""

    api_url: HttpUrl = "https://api.github.com"
    """GitHub's API; for GitHub Enterprise Server its own."""
    token: Secret = None
    """Signs in to the API; an App signs in by itself."""
    app_id: str | None = None
    """The number of the GitHub App to sign in as, and whose delivery log is read."""
    app_key_file: Path | None = None
    """The file with its private key; set with `app_id` or not at all."""
    hooks: Strings = ()
    """Repository hooks to watch, each as OWNER/NAME:HOOK_ID; those of an App need none."""
    recovery_seconds: Seconds = 300
    """How often the delivery log is compared with the inbox."""


class GitLabSettings(SourceSettings):
    """GitLab and its API."""

    api_url: HttpUrl = "https://gitlab.com/api/v4"
    """GitLab's API."""
    token: Secret = None
    """Reads and writes merge requests there."""


class JenkinsSettings(SourceSettings):
    """Jenkins, and who starts builds there."""

    url: HttpUrl | None = None
    """The Jenkins that `kind = "jenkins"` triggers build on."""
    user: str | None = None
    """Who builds there; set with `token` or not at all."""
    token: Secret = None
    """An API token of that user."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.user is None) != (self.token is None):
            raise ValueError("user and token are set both or not at all")
        if self.token is not None and self.url is None:
            raise ValueError("token is for url, which is not set")
        return self


class JiraSettings(SourceSettings):
    """Jira and its API; Cloud's token needs its user, Data Center's has none."""

    url: HttpUrl | None = None
    """Where Jira is, for `polling.jira`."""
    user: str | None = None
    """Whose token it is, on Jira Cloud; a token of Data Center needs none."""
    token: Secret = None
    """Reads issues and comments there."""
