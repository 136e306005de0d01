"""People: they push, comment, approve, merge and close, when the script says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from towline_sim.github.entities import Role, WorldRefusal
from towline_sim.github.world import World


class Person:
    """Each does it `after` some seconds; what the forge refuses is kept in `refusals`."""

    def __init__(self, world: World, login: str, repo: str, role: Role = "write") -> None:
        self.world = world
        self.login = login
        self.repo = repo
        self.refusals: list[str] = []
        world.set_permission(repo, login, role)

    def pushes(
        self, branch: str, changes: Mapping[str, bytes | None], message: str, *, after: float = 0.0
    ) -> None:
        self._do(
            after,
            lambda: self.world.write_files(self.repo, branch, changes, message, self.login),
        )

    def force_pushes(self, branch: str, sha: str, *, after: float = 0.0) -> None:
        ref = f"refs/heads/{branch}"
        self._do(after, lambda: self.world.update_ref(self.repo, ref, sha, self.login, force=True))

    def comments(self, number: int, body: str, *, after: float = 0.0) -> None:
        self._do(after, lambda: self.world.comment(self.repo, number, self.login, body))

    def approves(self, number: int, *, after: float = 0.0) -> None:
        self._do(after, lambda: self.world.review(self.repo, number, self.login, "APPROVE"))

    def merges(self, number: int, *, after: float = 0.0) -> None:
        self._do(after, lambda: self.world.merge_pull(self.repo, number, self.login))

    def closes(self, number: int, *, after: float = 0.0) -> None:
        self._do(after, lambda: self.world.edit_pull(self.repo, number, self.login, state="closed"))

    def keeps_pushing(
        self, branch: str, path: str, *, every: tuple[float, float], until: float
    ) -> None:
        """A busy branch: another line at the end of one file, again and again."""

        def push() -> None:
            files = self.world.files(self.repo, branch)
            known = self.world.objects.content(files[path]) if path in files else b""
            line = f"at {int(self.world.now)}\n".encode()
            self.world.write_files(self.repo, branch, {path: known + line}, "Go on", self.login)

        def again() -> None:
            if self.world.now < until:
                self._attempt(push)
                self.world.after_some(every, again)

        self.world.after_some(every, again)

    def _do(self, after: float, action: Callable[[], object]) -> None:
        self.world.after(after, lambda: self._attempt(action))

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except WorldRefusal as refusal:
            self.refusals.append(refusal.message)
