"""A real client, unchanged, at work in the simulator."""

from __future__ import annotations

import asyncio

import github
from github import Auth, Github, GithubException

from tests.sim.github_server import REPO, TOKEN, forge


def _client(url: str, token: str = TOKEN) -> Github:
    return Github(base_url=url, auth=Auth.Token(token), retry=None, seconds_between_requests=0)


def _open_a_pull(url: str) -> int:
    repo = _client(url).get_repo(REPO)
    main = repo.get_branch("main")
    repo.create_git_ref("refs/heads/fix/greeting", main.commit.sha)
    known = repo.get_contents("src/app.py", ref="fix/greeting")
    assert not isinstance(known, list)
    assert known.decoded_content == b"print('hello')\n"
    repo.update_file(known.path, "Greet", "print('hi')\n", known.sha, branch="fix/greeting")
    repo.create_file("src/new.py", "Add", "x = 1\n", branch="fix/greeting")
    pull = repo.create_pull(base="main", head="fix/greeting", title="Greet", body="as asked")
    return pull.number


def _read_and_talk(url: str, number: int) -> None:
    pull = _client(url).get_repo(REPO).get_pull(number)
    assert (pull.title, pull.body, pull.state) == ("Greet", "as asked", "open")
    assert sorted(file.filename for file in pull.get_files()) == ["src/app.py", "src/new.py"]
    assert [commit.commit.message for commit in pull.get_commits()] == ["Greet", "Add"]
    comment = pull.create_issue_comment("/rebuild")
    comment.create_reaction("+1")
    assert [one.body for one in pull.get_issue_comments()] == ["/rebuild"]
    pull.add_to_labels("automerge")
    assert [one.name for one in pull.get_labels()] == ["automerge"]
    pull.remove_from_labels("automerge")
    commit = pull.get_commits().reversed[0]
    commit.create_status("success", context="ci/build", description="built")
    assert commit.get_combined_status().state == "success"


def _merge(url: str, number: int) -> str:
    pull = _client(url).get_repo(REPO).get_pull(number)
    assert pull.mergeable is True
    result = pull.merge(sha=pull.head.sha)
    assert result.merged
    again = _client(url).get_repo(REPO).get_pull(number)
    assert again.merged
    assert again.state == "closed"
    return str(result.sha)


async def test_create_read_comment_and_merge() -> None:
    """A branch and commits by the API, a pull request, a comment, labels, a status, a merge."""
    async with forge() as there:
        number = await asyncio.to_thread(_open_a_pull, there.url)
        await there.pass_time(10)
        await asyncio.to_thread(_read_and_talk, there.url, number)
        sha = await asyncio.to_thread(_merge, there.url, number)
        assert there.world.ref(REPO, "refs/heads/main") == sha
        assert "src/new.py" in there.world.files(REPO, "main")


def _refusals(url: str, number: int) -> list[type[Exception] | int]:
    repo = _client(url).get_repo(REPO)
    seen: list[type[Exception] | int] = []
    attempts = (
        lambda: _client(url, "wrong").get_user().login,
        lambda: _client(url).get_repo("demo/missing"),
        lambda: repo.create_pull(base="main", head="fix/greeting", title="Again"),
        lambda: repo.get_pull(number).merge(sha="0" * 40),
    )
    for attempt in attempts:
        try:
            attempt()
        except GithubException as error:
            seen.append(error.status)
    return seen


async def test_refusals_are_github_s() -> None:
    """Wrong token, missing repository, a second pull request of one branch, a head that moved."""
    async with forge() as there:
        number = await asyncio.to_thread(_open_a_pull, there.url)
        await there.pass_time(10)
        assert await asyncio.to_thread(_refusals, there.url, number) == [401, 404, 422, 409]


def _plumbing(url: str) -> str:
    repo = _client(url).get_repo(REPO)
    tip = repo.get_git_ref("heads/main").object.sha
    parent = repo.get_git_commit(tip)
    element = github.InputGitTreeElement("docs/note.md", "100644", "blob", content="note\n")
    tree = repo.create_git_tree([element], base_tree=parent.tree)
    commit = repo.create_git_commit("Note", tree, [parent])
    repo.create_git_ref("refs/heads/notes", commit.sha)
    names = [entry.path for entry in repo.get_git_tree(tree.sha, recursive=True).tree]
    assert names == ["README.md", "docs", "docs/note.md", "src", "src/app.py"]
    comparison = repo.compare("main", "notes")
    assert (comparison.status, comparison.ahead_by, comparison.behind_by) == ("ahead", 1, 0)
    repo.get_git_ref("heads/notes").edit(tip, force=True)
    repo.get_git_ref("heads/notes").delete()
    return commit.sha


async def test_objects_one_by_one() -> None:
    """Tree, commit and reference by the Git Database API; the names are git's own."""
    async with forge() as there:
        sha = await asyncio.to_thread(_plumbing, there.url)
        assert there.world.objects.facts(sha).message == "Note"
        assert "refs/heads/notes" not in there.world.refs(REPO)
