"""Chooses the sandbox of this machine. Without one no code of a repository runs.

The fix pipeline, the audits and the doctor ask here. Bubblewrap is the sandbox; it is tried out by
running `true` in it, as a kernel that has namespaces may still refuse them to this process. With
`fix.sandbox = "none"` commands run also where it does not work, and then without isolation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.sandbox import calls
from towline.sandbox.base import Limits, Ran
from towline.sandbox.bubblewrap import BubblewrapSandbox
from towline.sandbox.confined import Supervised
from towline_once.errors import NotIsolated

Isolation: TypeAlias = Literal["required", "none"]
"""`fix.sandbox`: whether this machine has to isolate what it runs."""

_INSTALL: Final = (
    "install bubblewrap, which needs user namespaces: apt-get install bubblewrap (Debian, Ubuntu), "
    "dnf install bubblewrap (Fedora), apk add bubblewrap (Alpine)"
)
_ALLOW: Final = "allow user namespaces (in a container: by its seccomp profile)"
_FORBIDS: Final = (
    ("user/max_user_namespaces", "0", "set user.max_user_namespaces above 0"),
    ("kernel/unprivileged_userns_clone", "0", "set kernel.unprivileged_userns_clone = 1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "set kernel.apparmor_restrict_unprivileged_userns = 0, or give bwrap an AppArmor profile",
    ),
)
"""Settings of the kernel that forbid user namespaces: place, value, and what allows them."""
_REFUSED: Final = "this machine cannot isolate code of a repository, so Towline does not run it"
_NOT_ISOLATED: Final = ("files", "network", "processes")
"""What only bubblewrap isolates."""
_log = logging.getLogger("towline.fix")


class Choice(NamedTuple):
    sandbox: Supervised
    reason: str
    """A line for the log."""
    missing: tuple[str, ...] = ()
    """What is not isolated here."""


async def choose_sandbox(
    *,
    required: bool = True,
    readable: Sequence[Path] = (),
    path: str | None = None,
    own: Sequence[Path] = (),
) -> Choice:
    """Bubblewrap if it works here.

    `own` is what belongs to this installation and no command may read. With `required`, a machine
    that does not isolate everything is `NotIsolated`, before anything is run. Without, commands
    run with limits and a filter of system calls only.
    """
    wrapped = BubblewrapSandbox(readable=readable, path=path)
    trouble = await wrapped.works()
    if trouble is None:
        reason = f"sandbox: bubblewrap, which works here ({wrapped.program})"
        return _without_own(Choice(wrapped, reason), own, required)
    if required:
        raise NotIsolated(f"{_REFUSED}: {trouble}", _remedy(wrapped.program))
    missing = _NOT_ISOLATED if calls.known() else (*_NOT_ISOLATED, "system calls")
    said = f"sandbox: limits; not isolated: {', '.join(missing)} ({trouble})"
    return Choice(Supervised(readable=readable, path=path), said, missing)


def _without_own(choice: Choice, own: Sequence[Path], required: bool) -> Choice:
    """What belongs to us must not lie where every command may read."""
    shown = [Path(one).resolve() for one in choice.sandbox.readable(network=True)]
    for place in own:
        where = place.resolve()
        folder = next((one for one in shown if where == one or one in where.parents), None)
        if folder is None:
            continue
        said = f"{where} lies in {folder}, which every command in the sandbox may read"
        if required:
            raise NotIsolated(f"{_REFUSED}: {said}", "move it to another folder")
        missing = tuple(sorted({*choice.missing, "files"}))
        return choice._replace(reason=f"{choice.reason}; {said}", missing=missing)
    return choice


def _remedy(program: str | None) -> str:
    """What to install, or what lets this process make user namespaces."""
    if not calls.known():
        return "run the worker on x86_64 or aarch64"
    setting = next((fix for name, value, fix in _FORBIDS if _holds(name, value)), None)
    if program is None:
        return f"{_INSTALL}; {setting}" if setting else _INSTALL
    return setting or _ALLOW


def _holds(name: str, value: str) -> bool:
    try:
        return Path("/proc/sys", name).read_text().strip() == value
    except OSError:
        return False


class MachineSandbox:
    """The sandbox of this machine, chosen when something is to be run for the first time.

    A refusal is not kept: what is installed meanwhile is found the next time. Nor is a choice
    that has stopped working.
    """

    def __init__(self, isolation: Isolation = "required", own: Sequence[Path] = ()) -> None:
        self._required = isolation == "required"
        self._own = tuple(own)
        self._chosen: Choice | None = None
        self._refused: str | None = None

    @property
    def warning(self) -> str | None:
        if self._required:
            return None
        missing = ", ".join(self._chosen.missing) if self._chosen is not None else ""
        lost = f", and this machine does not isolate {missing}" if missing else ""
        return f'fix.sandbox is "none": code of repositories runs without required isolation{lost}'

    @property
    def trouble(self) -> str | None:
        """The last refusal, or the warning, for pages that must not wait."""
        return self._refused or self.warning

    async def check(self) -> None:
        await self._choice()

    async def run(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        sandbox = (await self._choice()).sandbox
        ran = await sandbox.run(command, folder, limits, stdin=stdin, environment=environment)
        if ran.trouble is not None:
            # Isolation may have vanished since it was chosen: then this is a refusal, not a
            # failure that another attempt would mend.
            self._chosen = None
            await self._choice()
        return ran

    async def _choice(self) -> Choice:
        if self._chosen is None:
            try:
                self._chosen = await choose_sandbox(required=self._required, own=self._own)
            except NotIsolated as refused:
                self._refused = str(refused)
                raise
            self._refused = None
            level = logging.WARNING if self._chosen.missing else logging.INFO
            _log.log(level, self._chosen.reason)
        return self._chosen
