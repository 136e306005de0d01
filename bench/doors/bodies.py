"""GitHub pushes of 8 kB, signed: one for each of many repositories, as an organisation sends them.

Words and hashes are drawn at random, with a fixed seed, so that a body compresses as real ones do.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import uuid
from typing import Any, NamedTuple

import orjson

SECRET = "a secret for everybody here"
EVENT = "push"
LENGTH = 8192
REPOSITORIES = 256

_PROSE = """
queue worker lease retry parse header fix flaky test bump the cache when a build fails and
clean up after merge add docs for release notes handle empty config rename module drop old
support timeout race in client reconnect under load index migration
"""
_PARTS = """
forks keys collaborators teams hooks issue_events events assignees branches tags blobs
git_tags git_refs trees statuses languages stargazers contributors subscribers subscription
commits git_commits comments issue_comment contents compare merges archive downloads issues
pulls milestones notifications labels releases deployments
"""
_WORDS, _LINKS = _PROSE.split(), _PARTS.split()


class Body(NamedTuple):
    content: bytes
    signature: str


def bodies(count: int = REPOSITORIES) -> list[Body]:
    return [_signed(_push(random.Random(number), number)) for number in range(count)]


def delivery_ids(count: int) -> list[bytes]:
    """As GitHub's: UUIDs of version 1."""
    return [str(uuid.uuid1()).encode() for _ in range(count)]


def _signed(content: bytes) -> Body:
    digest = hmac.new(SECRET.encode(), content, hashlib.sha256).hexdigest()
    return Body(content, f"sha256={digest}")


def _push(chance: random.Random, number: int) -> bytes:
    name = f"acme/service-{number:03d}"
    commits: list[dict[str, Any]] = []
    event: dict[str, Any] = {
        "ref": "refs/heads/main",
        "before": _sha(chance),
        "after": _sha(chance),
        "repository": _repository(name, number),
        "pusher": {"name": "octo", "email": "octo@example.com"},
        "sender": _user("octo", 583231),
        "created": False,
        "deleted": False,
        "forced": False,
        "base_ref": None,
        "compare": f"https://github.com/{name}/compare/{_sha(chance)[:12]}...{_sha(chance)[:12]}",
        "commits": commits,
        "head_commit": None,
    }
    while len(orjson.dumps(event)) < LENGTH - 1200:
        commits.append(_commit(chance, name))
    event["head_commit"] = commits[-1] if commits else _commit(chance, name)
    event["compare"] += "?" + "x" * max(0, LENGTH - len(orjson.dumps(event)) - 1)
    return orjson.dumps(event)


def _commit(chance: random.Random, name: str) -> dict[str, Any]:
    sha, person = _sha(chance), {"name": "Octo Cat", "email": "octo@example.com"}
    return {
        "id": sha,
        "tree_id": _sha(chance),
        "distinct": True,
        "message": " ".join(chance.choices(_WORDS, k=9)),
        "timestamp": f"2026-11-0{chance.randint(1, 9)}T10:{chance.randint(10, 59)}:00Z",
        "url": f"https://github.com/{name}/commit/{sha}",
        "author": person,
        "committer": person,
        "added": [],
        "removed": [],
        "modified": [f"src/{chance.choice(_WORDS)}/{chance.choice(_WORDS)}.py" for _ in range(3)],
    }


def _repository(name: str, number: int) -> dict[str, Any]:
    api = f"https://api.github.com/repos/{name}"
    owner, _, short = name.partition("/")
    return {
        "id": 1296269 + number,
        "name": short,
        "full_name": name,
        "private": True,
        "owner": _user(owner, 9919),
        "html_url": f"https://github.com/{name}",
        "url": api,
        **{f"{link}_url": f"{api}/{link}" for link in _LINKS},
        "default_branch": "main",
        "visibility": "private",
    }


def _user(login: str, number: int) -> dict[str, Any]:
    api = f"https://api.github.com/users/{login}"
    links = ("followers", "following", "gists", "starred", "subscriptions", "orgs", "repos")
    return {
        "login": login,
        "id": number,
        "url": api,
        "html_url": f"https://github.com/{login}",
        **{f"{link}_url": f"{api}/{link}" for link in links},
        "type": "User",
        "site_admin": False,
    }


def _sha(chance: random.Random) -> str:
    return f"{chance.getrandbits(160):040x}"
