"""What the pages tell one to type is typed, in their order, and does what they say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.docs_pages import SHELLS, Block, blocks_of, pages, shown
from tests.docs_session import PATIENCE, Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SIM_TOML = """[github]
api_url = "http://127.0.0.1:8790"
token = "secret"
webhook_secrets = ["hook-secret"]
[tow]
branch_prefixes = ["towline/"]
"""


def typed(page: str) -> list[Block]:
    """What a reader types or saves, in order."""
    return [
        block
        for block in blocks_of(page)
        if block.not_run is None and (block.language in SHELLS or block.session)
    ]


def read_through(session: Session, page: str) -> list[str]:
    """Do all that the page says; the output of each block."""
    return [do(session, block) for block in typed(page)]


def do(session: Session, block: Block) -> str:
    """Save it or type it; what was answered."""
    if block.session:
        session.put(block)
        return ""
    return session.type(block.text)


def state_of(session: Session, ref: str = "demo/app/1") -> dict[str, Any]:
    answer = httpx2.get(
        session.url(f"/api/pr/{ref}/status"),
        headers={"X-API-Key": session.words["tow_…"]},
        timeout=PATIENCE,
    )
    found: dict[str, Any] = answer.json()
    return found


def is_merged(session: Session) -> bool:
    return state_of(session).get("state") == "MERGED"


def sign_commits(session: Session) -> None:
    """As a reader has done long ago; in a file of the session's own."""
    session.type("git config --global user.name octocat")
    session.type("git config --global user.email octocat@example.com")


def readme(folder: Path) -> None:
    """Work once by its key, a duplicate, a result; then a pull request until it is merged."""
    with Session(folder) as session:
        serve, submit, claim, complete, sim, config, again, introduce = typed("README.md")
        session.type(serve.text)
        assert '"dedup":false' in session.type(submit.text)
        assert '"dedup":true' in session.type(submit.text)
        assert "key_collision" in session.type(submit.text.replace("acme/app", "acme/other"))
        session.type(claim.text)
        session.type(complete.text)
        assert '"completed"' in session.type(submit.text)
        for path in ("/", "/docs"):
            assert httpx2.get(session.url(path), timeout=PATIENCE).status_code < 400
        session.stop_last()
        session.type(sim.text)
        session.put(config)
        session.type(again.text)
        sign_commits(session)
        session.type(introduce.text)
        session.until(lambda: is_merged(session), "it is merged")
        session.type("cd ..\ntowline prs\ntowline explain demo/app#1")


def tutorial(folder: Path) -> None:
    """From the simulator to a merge, with the commands that watch it."""
    with Session(folder) as session:
        *before, watch, order = typed("docs/tutorial/index.md")
        outputs = [do(session, block) for block in before]
        session.until(lambda: "state" in state_of(session), "it is under tow")
        outputs += [do(session, watch), do(session, order)]
        inbox = next(block for block in before if "/api/deliveries" in block.text)
        assert '"ping"' in do(session, inbox)
        assert "demo/app#1" in "".join(outputs)
        session.until(lambda: is_merged(session), "it is merged")
        assert "MERGED" in session.type("towline explain demo/app#1")


def towed(session: Session) -> None:
    """A service that tows, and a pull request that it has seen."""
    (session.folder / "towline.toml").write_text(
        SIM_TOML.replace("8790", session.ports["8790"]), encoding="utf-8"
    )
    session.type("towline sim serve --port 8790 --token secret")
    session.type("towline serve")
    *_, introduce = typed("README.md")
    sign_commits(session)
    session.type(introduce.text + "\ncd ..")
    session.until(lambda: "state" in state_of(session), "it is under tow")
    session.type("export KEY=tow_…")


def tow_pull_requests(folder: Path) -> None:
    """Looking at a pull request, ordering something, closing breakers."""
    names = {"octo-org/app#7": "demo/app#1", "octo-org/app/7": "demo/app/1"}
    with Session(folder, names) as session:
        towed(session)
        outputs = "".join(read_through(session, "docs/how-to/tow-pull-requests.md"))
        assert '"job_id"' in outputs
        assert '"results"' in outputs
        session.type("towline reconcile --dry-run")
        for path in ("/api/prs", "/api/prs/stale", "/api/pr/demo/app/1/status"):
            found = httpx2.get(
                session.url(path), headers={"X-API-Key": session.words["tow_…"]}, timeout=PATIENCE
            )
            assert found.status_code == 200


def use_the_simulator(folder: Path) -> None:
    """The simulator alone, with git, a hook and PyGithub."""
    with Session(folder) as session:
        outputs = read_through(session, "docs/how-to/use-the-simulator.md")
        assert '"events"' in outputs[-1]
        assert (folder / "app" / "README.md").exists()
        program = folder / "with_any_client.py"
        first = next(
            block
            for block in blocks_of("docs/how-to/use-the-simulator.md")
            if block.language == "python"
        )
        program.write_text(first.text.replace("8790", session.ports["8790"]), encoding="utf-8")
        session.type(f"{sys.executable} {program}")


def receive_webhooks(folder: Path) -> None:
    """A signed delivery twice: 202, then 200; then the service on two addresses."""
    with Session(folder) as session:
        first, signed, two_planes, named = typed("docs/how-to/receive-webhooks.md")
        session.type(first.text)
        assert "202 Accepted" in session.type(signed.text)
        assert "200 OK" in session.type(signed.text)
        session.stop_last()
        session.type(two_planes.text)
        assert httpx2.get(session.url("/metrics"), timeout=PATIENCE).status_code == 404
        assert httpx2.get(session.url("/metrics", "8789"), timeout=PATIENCE).status_code == 200
        session.stop_last()
        session.type(named.text)
        for name, status in (("towline.example.com", 200), ("other.example.com", 421)):
            asked = httpx2.get(session.url("/healthz"), headers={"host": name}, timeout=PATIENCE)
            assert asked.status_code == status


def submit_work(folder: Path) -> None:
    """A key is made, work is submitted, and a worker is given it."""
    with Session(folder) as session:
        session.type("towline serve")
        submitted, claimed = read_through(session, "docs/how-to/submit-work.md")
        assert '"accepted"' in submitted
        assert '"token"' in claimed


def use_jenkins(folder: Path) -> None:
    """A signed report of any CI is taken in."""
    with Session(folder) as session:
        (output,) = read_through(session, "docs/how-to/use-jenkins.md")
        assert '"accepted"' in output


def unblock(folder: Path) -> None:
    """The routes answer; there is nothing to unblock, and they say so."""
    with Session(folder) as session:
        session.type("towline serve")
        session.type(f"export API={session.url('')} RUN_KEY={'0' * 64} KEY=tow_…")
        run, breaker = read_through(session, "docs/operations/unblock.md")
        assert "unknown_run" in run
        assert "not_found" not in breaker


def fix_pipeline(folder: Path) -> None:
    """The digest that the shell gives is the one that the page's settings hold."""
    page = "docs/operations/fix-pipeline.md"
    with Session(folder) as session:
        (output,) = read_through(session, page)
        assert output.split()[0] in "".join(shown(page, "toml"))


def settings_from_the_shell(page: str) -> Callable[[Path], None]:
    """Pages whose lines set variables, or look at the database: they run as they stand."""

    def run(folder: Path) -> None:
        with Session(folder) as session:
            read_through(session, page)

    run.__doc__ = "The commands run, one after the other."
    return run


SESSIONS: dict[str, Callable[[Path], None]] = {
    "README.md": readme,
    "docs/tutorial/index.md": tutorial,
    "docs/how-to/tow-pull-requests.md": tow_pull_requests,
    "docs/how-to/use-the-simulator.md": use_the_simulator,
    "docs/how-to/receive-webhooks.md": receive_webhooks,
    "docs/how-to/submit-work.md": submit_work,
    "docs/how-to/use-jenkins.md": use_jenkins,
    "docs/how-to/set-up-a-github-app.md": settings_from_the_shell(
        "docs/how-to/set-up-a-github-app.md"
    ),
    "docs/how-to/check-the-installation.md": settings_from_the_shell(
        "docs/how-to/check-the-installation.md"
    ),
    "docs/operations/fix-pipeline.md": fix_pipeline,
    "docs/operations/unblock.md": unblock,
    "docs/operations/index.md": settings_from_the_shell("docs/operations/index.md"),
}
ON_SERVERS = ("docs/how-to/run-on-many-machines.md",)


@pytest.mark.parametrize("page", SESSIONS)
def test_a_page_as_typed(page: str, tmp_path: Path) -> None:
    """Everything that the page tells one to type works, in its order."""
    SESSIONS[page](tmp_path)


def test_many_machines(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """PostgreSQL with a second worker, then Celery, then its metrics, with the page's lines."""
    servers = {"postgresql://towline@db/towline": postgres_url, "redis://broker": redis_url}
    embedded, celery, measured = typed(ON_SERVERS[0])
    with Session(tmp_path, servers) as session:
        session.type(embedded.text)
        session.stop_last()
        session.stop_last()
        session.type(celery.text)
        assert httpx2.get(session.url("/readyz"), timeout=PATIENCE).status_code == 200
        session.type(measured.text)
        metrics = session.url("/metrics", "8789")
        session.until(lambda: shows_figures(metrics), "the worker's metrics")


def shows_figures(url: str) -> bool:
    try:
        return "towline_jobs_running" in httpx2.get(url, timeout=PATIENCE).text
    except httpx2.ConnectError:
        return False


def test_every_page_with_something_to_type_has_a_reader() -> None:
    """A page that gets its first shell block needs an entry above, or a reason beside the block."""
    shell = {page for page in pages() if any(b.language in SHELLS for b in typed(page))}
    assert shell - {"docs/reference/settings.md"} == {*SESSIONS, *ON_SERVERS}
