"""Git objects and references, one by one, as the Git Database API has them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from towline_sim.github.git_objects import ObjectKind
from towline_sim.github.problems import Problem, invalid, not_found
from towline_sim.github.rest.calls import Answer, Call, Route, listed

_GIT: Final = "/repos/{owner}/{repo}/git"


def get_ref(call: Call) -> Answer:
    name = _full(call)
    return Answer(call.show.ref(call.repo, name, call.world.ref(call.repo_name, name)))


def matching_refs(call: Call) -> Answer:
    wanted = _full(call)
    refs = sorted(call.world.refs(call.repo_name).items())
    found = [(name, sha) for name, sha in refs if name.startswith(wanted)]
    return listed(call, found, lambda one: call.show.ref(call.repo, *one))


def create_ref(call: Call) -> Answer:
    name, sha = call.given("ref"), call.given("sha")
    if not name.startswith("refs/") or name.count("/") < 2:
        raise Problem(422, "Reference name must start with 'refs/' and have at least two slashes.")
    if not call.world.objects.is_commit(sha):
        raise Problem(422, "Object does not exist")
    call.world.create_ref(call.repo_name, name, sha, call.by)
    shown = call.show.ref(call.repo, name, sha)
    return Answer(shown, 201, {"location": shown["url"]})


def update_ref(call: Call) -> Answer:
    name, sha = _full(call), call.given("sha")
    if not call.world.objects.is_commit(sha):
        raise Problem(422, "Object does not exist")
    if name not in call.world.refs(call.repo_name):
        raise Problem(422, "Reference does not exist")
    force = call.field("force", bool, False)
    call.world.update_ref(call.repo_name, name, sha, call.by, force=force)
    return Answer(call.show.ref(call.repo, name, sha))


def delete_ref(call: Call) -> Answer:
    name = _full(call)
    if name not in call.world.refs(call.repo_name):
        raise Problem(422, "Reference does not exist")
    call.world.delete_ref(call.repo_name, name, call.by)
    return Answer(status=204)


def _full(call: Call) -> str:
    return f"refs/{call.params['ref'].removeprefix('refs/')}"


def get_commit(call: Call) -> Answer:
    sha = _existing(call, "commit", call.params["sha"])
    return Answer(call.show.git_commit(call.repo, call.world.objects.facts(sha)))


def create_commit(call: Call) -> Answer:
    tree = _existing(call, "tree", call.given("tree"), 422)
    parents = [_existing(call, "commit", one, 422) for one in call.field("parents", list, [])]
    author = call.field("author", dict, {})
    sha = call.world.objects.commit(
        tree,
        parents,
        call.given("message"),
        name=str(author.get("name", call.by)),
        email=str(author.get("email", f"{call.by}@users.noreply.github.com")),
        at=_date(author.get("date"), call.world.now),
    )
    shown = call.show.git_commit(call.repo, call.world.objects.facts(sha))
    return Answer(shown, 201, {"location": shown["url"]})


def _date(text: object, now: float) -> float:
    if text is None:
        return now
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        invalid("date", "invalid")


def get_tree(call: Call) -> Answer:
    sha = _tree(call, call.params["sha"])
    deep = call.query.get("recursive") not in (None, "", "0", "false")
    return Answer(call.show.tree(call.repo, sha, deep=deep))


def _tree(call: Call, rev: str) -> str:
    """A tree by its own name, or by that of a commit or branch."""
    objects = call.world.objects
    if rev in objects and objects.read(rev)[0] == "tree":
        return rev
    return objects.facts(call.world.resolve(call.repo_name, rev)).tree


def create_tree(call: Call) -> Answer:
    base = call.field("base_tree")
    files = dict(call.world.objects.files(_tree(call, base))) if base else {}
    for entry in call.given("tree", list):
        _apply(call, files, entry)
    sha = call.world.objects.tree(files)
    return Answer(call.show.tree(call.repo, sha, deep=False), 201)


def _apply(call: Call, files: dict[str, str], entry: Any) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or not entry["path"]:
        invalid("tree", "invalid", "tree.path is required")
    path = entry["path"]
    if "content" in entry:
        files[path] = call.world.objects.blob(str(entry["content"]).encode())
    elif entry.get("sha") is None:
        for below in [one for one in files if one == path or one.startswith(f"{path}/")]:
            del files[below]
    elif entry.get("type") == "tree":
        inner = call.world.objects.files(_existing(call, "tree", entry["sha"], 422))
        files.update({f"{path}/{name}": sha for name, sha in inner.items()})
    else:
        files[path] = _existing(call, "blob", entry["sha"], 422)


def get_blob(call: Call) -> Answer:
    return Answer(call.show.blob(call.repo, _existing(call, "blob", call.params["sha"])))


def create_blob(call: Call) -> Answer:
    sha = call.world.objects.blob(decoded(call.body))
    url = f"{call.root}/repos/{call.repo_name}/git/blobs/{sha}"
    return Answer({"sha": sha, "url": url}, 201, {"location": url})


def decoded(body: Any) -> bytes:
    """The bytes of `content`, which is text, or base64 if `encoding` says so."""
    fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
    content = fields.get("content")
    if not isinstance(content, str):
        invalid("content", "missing_field", 'Invalid request.\n\n"content" wasn\'t supplied.')
    if fields.get("encoding", "utf-8") != "base64":
        return content.encode()
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except binascii.Error:
        raise Problem(422, "content is not valid Base64") from None


def _existing(call: Call, kind: ObjectKind, sha: object, status: int = 404) -> str:
    objects = call.world.objects
    if not isinstance(sha, str) or sha not in objects or objects.read(sha)[0] != kind:
        if status == 404:
            not_found()
        raise Problem(status, f"{kind.capitalize()} SHA does not exist or is not a {kind}")
    return sha


ROUTES: Final = (
    Route("GET", f"{_GIT}/ref/{{ref*}}", get_ref),
    Route("GET", f"{_GIT}/matching-refs/{{ref*}}", matching_refs),
    Route("GET", f"{_GIT}/refs/{{ref*}}", get_ref),
    Route("POST", f"{_GIT}/refs", create_ref),
    Route("PATCH", f"{_GIT}/refs/{{ref*}}", update_ref),
    Route("DELETE", f"{_GIT}/refs/{{ref*}}", delete_ref),
    Route("GET", f"{_GIT}/commits/{{sha}}", get_commit),
    Route("POST", f"{_GIT}/commits", create_commit),
    Route("GET", f"{_GIT}/trees/{{sha*}}", get_tree),
    Route("POST", f"{_GIT}/trees", create_tree),
    Route("GET", f"{_GIT}/blobs/{{sha}}", get_blob),
    Route("POST", f"{_GIT}/blobs", create_blob),
)
