"""Files, commits and branches of a repository, and what lies between two of them."""

from __future__ import annotations

from typing import Any, Final

from towline_sim.github.git_objects import Files
from towline_sim.github.problems import Problem, not_found
from towline_sim.github.rest.calls import Answer, Call, Route, listed
from towline_sim.github.rest.git import decoded

_REPO: Final = "/repos/{owner}/{repo}"
_CONTENTS: Final = f"{_REPO}/contents/{{path*}}"


def get_contents(call: Call) -> Answer:
    rev = call.query.get("ref", call.repo.default_branch)
    files = call.world.files(call.repo_name, rev)
    path = call.params.get("path", "").strip("/")
    if path in files:
        shown = call.show.content_file(call.repo, path, files[path], rev)
        raw = "raw" in call.accept
        return Answer(call.world.objects.content(files[path]) if raw else shown)
    names = _below(files, path)
    if not names:
        not_found()
    return Answer([call.show.content_entry(call.repo, *one, rev) for one in names.items()])


def _below(files: Files, folder: str) -> dict[str, str | None]:
    """What stands right below a folder: files with their blob, folders without."""
    start = f"{folder}/" if folder else ""
    found: dict[str, str | None] = {}
    for path, sha in files.items():
        if path.startswith(start):
            name, slash, _ = path[len(start) :].partition("/")
            found[start + name] = None if slash else sha
    return found


def put_contents(call: Call) -> Answer:
    path, branch = call.params["path"].strip("/"), _branch(call)
    known = call.world.files(call.repo_name, branch).get(path)
    _check_known(call, path, known)
    content = decoded({"content": call.field("content"), "encoding": "base64"})
    changed = _written(call, branch, path, content)
    blob = call.world.files(call.repo_name, branch)[path]
    shown = call.show.content_file(call.repo, path, blob, branch)
    slim = {name: value for name, value in shown.items() if name not in ("content", "encoding")}
    return Answer({"content": slim, **changed}, 200 if known else 201)


def delete_contents(call: Call) -> Answer:
    path, branch = call.params["path"].strip("/"), _branch(call)
    known = call.world.files(call.repo_name, branch).get(path)
    if known is None:
        not_found()
    call.given("sha")
    _check_known(call, path, known)
    return Answer({"content": None, **_written(call, branch, path, None)})


def _branch(call: Call) -> str:
    return str(call.field("branch", default=call.repo.default_branch))


def _check_known(call: Call, path: str, known: str | None) -> None:
    sha = call.field("sha")
    if known is not None and sha is None:
        raise Problem(422, 'Invalid request.\n\n"sha" wasn\'t supplied.')
    if sha is not None and sha != known:
        raise Problem(409, f"{path} does not match {sha}")


def _written(call: Call, branch: str, path: str, content: bytes | None) -> dict[str, Any]:
    author = call.field("author", dict, {})
    sha = call.world.write_files(
        call.repo_name,
        branch,
        {path: content},
        call.given("message"),
        call.by,
        author_email=author.get("email"),
    )
    facts = call.world.commit(call.repo_name, sha)
    return {"commit": call.show.git_commit(call.repo, facts)}


def get_commit(call: Call) -> Answer:
    facts = call.world.commit(call.repo_name, call.params["ref"])
    base = facts.parents[0] if facts.parents else None
    files = call.world.changed_files(call.repo_name, base, facts.sha) if base else []
    return Answer(call.show.commit(call.repo, facts, files))


def list_commits(call: Call) -> Answer:
    sha = call.world.resolve(call.repo_name, call.query.get("sha", call.repo.default_branch))
    objects = call.world.objects
    commits = [objects.facts(one) for one in objects.ancestors(sha)]
    return listed(call, commits, lambda one: call.show.commit(call.repo, one))


def compare(call: Call) -> Answer:
    base, dots, head = call.params["basehead"].partition("...")
    if not dots:
        not_found()
    base, head = base.rpartition(":")[2], head.rpartition(":")[2]
    found = call.world.compare(call.repo_name, base, head)
    files = call.world.changed_files(call.repo_name, base, head)
    return Answer(call.show.comparison(call.repo, (base, head), found, files))


def merge_branches(call: Call) -> Answer:
    sha = call.world.merge_branch(
        call.repo_name,
        call.given("base"),
        call.given("head"),
        call.by,
        call.field("commit_message"),
    )
    if sha is None:
        return Answer(status=204)
    facts = call.world.commit(call.repo_name, sha)
    return Answer(call.show.commit(call.repo, facts), 201)


def list_branches(call: Call) -> Answer:
    prefix = "refs/heads/"
    refs = sorted(call.world.refs(call.repo_name).items())
    heads = [(name[len(prefix) :], sha) for name, sha in refs if name.startswith(prefix)]
    return listed(call, heads, lambda one: call.show.branch_short(call.repo, *one))


def get_branch(call: Call) -> Answer:
    name = call.params["branch"]
    sha = _tip(call, name)
    return Answer(call.show.branch(call.repo, name, call.world.commit(call.repo_name, sha)))


def get_protection(call: Call) -> Answer:
    name = call.params["branch"]
    _tip(call, name)
    protection = call.world.protection(call.repo_name, name)
    if protection is None:
        raise Problem(404, "Branch not protected")
    return Answer(call.show.protection(call.repo, name, protection))


def _tip(call: Call, name: str) -> str:
    sha = call.world.refs(call.repo_name).get(f"refs/heads/{name}")
    if sha is None:
        raise Problem(404, "Branch not found")
    return sha


ROUTES: Final = (
    Route("GET", f"{_REPO}/contents", get_contents),
    Route("GET", f"{_REPO}/contents/", get_contents),
    Route("GET", _CONTENTS, get_contents),
    Route("PUT", _CONTENTS, put_contents),
    Route("DELETE", _CONTENTS, delete_contents),
    Route("GET", f"{_REPO}/commits", list_commits),
    Route("GET", f"{_REPO}/commits/{{ref*}}", get_commit),
    Route("GET", f"{_REPO}/compare/{{basehead*}}", compare),
    Route("POST", f"{_REPO}/merges", merge_branches),
    Route("GET", f"{_REPO}/branches", list_branches),
    Route("GET", f"{_REPO}/branches/{{branch*}}/protection", get_protection),
    Route("GET", f"{_REPO}/branches/{{branch*}}", get_branch),
)
