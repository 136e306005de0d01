"""Repositories: who may do what there, their labels, rules and hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from towline.sim.entities import (
    ROLES,
    Hook,
    Label,
    Protection,
    Repo,
    RepoOptions,
    Role,
    User,
    WorldRefusal,
)
from towline.sim.world_base import RepoState, WorldBase, invalid, not_found


class WorldRepos(WorldBase):
    def create_repo(
        self,
        full_name: str,
        files: Mapping[str, bytes] | None = None,
        *,
        private: bool = False,
        description: str | None = None,
        options: RepoOptions | None = None,
    ) -> Repo:
        """With a first commit on its default branch."""
        owner, slash, name = full_name.partition("/")
        if not (owner and slash and name) or "/" in name:
            raise invalid("name is invalid", resource="Repository", field_name="name")
        if full_name.lower() in self._states:
            raise invalid("name already exists on this account", resource="Repository")
        state = self._add_repo(
            Repo(
                id=self._new_id(),
                owner=self.user(owner),
                name=name,
                private=private,
                description=description,
                created_at=self.now,
                updated_at=self.now,
                pushed_at=self.now,
                options=options or RepoOptions(),
            )
        )
        content = files or {"README.md": f"# {name}\n".encode()}
        tree = self.objects.tree({path: self.objects.blob(body) for path, body in content.items()})
        state.refs[f"refs/heads/{state.repo.default_branch}"] = self.objects.commit(
            tree,
            (),
            "Initial commit",
            name=owner,
            email=f"{owner}@users.noreply.example.com",
            at=self.now,
        )
        return state.repo

    def fork(self, repo: str, owner: str) -> Repo:
        source = self._state(repo)
        if f"{owner}/{source.repo.name}".lower() in self._states:
            raise invalid("name already exists on this account", resource="Repository")
        forked = replace(
            source.repo,
            id=self._new_id(),
            owner=self.user(owner),
            parent=source.repo.full_name,
            created_at=self.now,
        )
        self._add_repo(forked).refs.update(source.refs)
        return forked

    def _add_repo(self, repo: Repo) -> RepoState:
        state = RepoState(repo)
        self._states[repo.full_name] = self._states[repo.full_name.lower()] = state
        state.roles[repo.owner.login.lower()] = "admin"
        return state

    def repo(self, repo: str) -> Repo:
        return self._state(repo).repo

    def repos(self) -> list[Repo]:
        return [state.repo for state in {id(s): s for s in self._states.values()}.values()]

    def set_options(self, repo: str, options: RepoOptions) -> None:
        state = self._state(repo)
        state.repo = replace(state.repo, options=options)

    # rules and roles

    def protect(self, repo: str, branch: str, protection: Protection | None) -> None:
        protections = self._state(repo).protections
        if protection is None:
            protections.pop(branch, None)
        else:
            protections[branch] = protection

    def protection(self, repo: str, branch: str) -> Protection | None:
        return self._state(repo).protections.get(branch)

    def set_permission(self, repo: str, login: str, role: Role) -> None:
        self._state(repo).roles[self.user(login).login.lower()] = role

    def permission(self, repo: str, login: str) -> Role:
        state = self._state(repo)
        return state.roles.get(login.lower(), "none" if state.repo.private else "read")

    def collaborators(self, repo: str) -> list[tuple[User, Role]]:
        return [(self.user(login), role) for login, role in self._state(repo).roles.items()]

    def may(self, repo: str, login: str, least: Role) -> bool:
        return ROLES.index(self.permission(repo, login)) >= ROLES.index(least)

    def _must(self, repo: str, login: str, least: Role) -> None:
        if not self.may(repo, login, least):
            raise WorldRefusal(403, "Resource not accessible by integration")

    # labels

    def labels(self, repo: str) -> list[Label]:
        return list(self._state(repo).labels.values())

    def label(self, repo: str, name: str) -> Label:
        """Made when it is first mentioned; names differ in more than case."""
        labels = self._state(repo).labels
        if name.lower() not in labels:
            labels[name.lower()] = Label(self._new_id(), name)
        return labels[name.lower()]

    # hooks

    def create_hook(
        self,
        repo: str,
        url: str,
        *,
        secret: str = "",
        events: Sequence[str] = ("push",),
        active: bool = True,
        content_type: str = "json",
    ) -> Hook:
        if urlsplit(url).scheme not in ("http", "https"):
            raise invalid("url is missing a scheme", resource="Hook")
        hooks = self._state(repo).hooks
        if any(hook.url == url and set(hook.events) & set(events) for hook in hooks.values()):
            raise invalid("Hook already exists on this repository", resource="Hook")
        hook = Hook(
            id=self._new_id(),
            repo=self.repo(repo).full_name,
            url=url,
            secret=secret,
            events=tuple(events),
            active=active,
            content_type=content_type,
            created_at=self.now,
            updated_at=self.now,
        )
        hooks[hook.id] = hook
        return hook

    def hooks(self, repo: str) -> list[Hook]:
        return list(self._state(repo).hooks.values())

    def hook(self, repo: str, hook_id: int) -> Hook:
        found = self._state(repo).hooks.get(hook_id)
        if found is None:
            raise not_found()
        return found

    def delete_hook(self, repo: str, hook_id: int) -> None:
        self.hook(repo, hook_id)
        del self._state(repo).hooks[hook_id]
