"""Runs git as a subprocess, with a clean environment, a deadline and bounded output.

Repositories are not trusted: no hook, no filter, no configuration of the machine takes part.
`clone_cache` and `worktree` are the callers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import os
import re
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from towline.forges.base import GitAccess
from towline.git.workspace import RepositoryUnavailable
from towline_once.errors import Rejected

# ------------------------------------------------------------------ git's environment
# The environment that git runs in: nothing of ours, nor of the machine's.
#
# A repository can bring hooks, filters, external diffs, submodules and transports that run
# programs. All of these are set aside here, once, for every run of git. Credentials travel in the
# environment and nowhere else: not on a command line, in a remote, in a file or in a message.

IGNORED_ATTRIBUTES: Final = (
    "* !filter !diff !merge !text !eol !crlf !ident !working-tree-encoding !export-subst\n"
)
"""For `info/attributes`, which overrules every .gitattributes: files are their bytes, no more."""

_HARDENING: Final[tuple[tuple[str, str], ...]] = (
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.attributesFile", os.devnull),
    ("core.excludesFile", os.devnull),
    ("core.autocrlf", "false"),
    ("core.safecrlf", "false"),
    # A link becomes a file with its target as text; those that stay inside are made afterwards.
    ("core.symlinks", "false"),
    ("core.protectHFS", "true"),
    ("core.protectNTFS", "true"),
    ("core.fileMode", "true"),
    ("core.quotePath", "true"),
    ("core.alternateRefsCommand", ""),
    ("core.sshCommand", "false"),
    ("core.gitProxy", ""),
    ("credential.helper", ""),
    ("credential.interactive", "false"),
    ("diff.external", ""),
    ("diff.ignoreSubmodules", "all"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("push.recurseSubmodules", "no"),
    ("push.gpgSign", "false"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("safe.bareRepository", "explicit"),
    ("transfer.bundleURI", "false"),
    ("transfer.fsckObjects", "true"),
    ("fetch.fsckObjects", "true"),
    ("fetch.unpackLimit", "1"),
    ("transfer.credentialsInUrl", "die"),
    ("protocol.allow", "never"),
    ("http.followRedirects", "false"),
    ("http.sslVerify", "true"),
    ("http.lowSpeedLimit", "100"),
    ("http.lowSpeedTime", "60"),
)
# What git only warns of by itself, and what old but harmless history is full of.
_FSCK_ERRORS: Final = ("hasDot", "hasDotdot", "hasDotgit", "fullPathname", "emptyName")
_FSCK_HARMLESS: Final = (
    *("badTimezone", "missingSpaceBeforeDate", "missingNameBeforeEmail", "missingEmail"),
    *("zeroPaddedFilemode", "badFilemode", "zeroPaddedDate", "missingSpaceBeforeEmail"),
)


class Network(NamedTuple):
    """How git gets out, where that takes more than a name."""

    proxy: str | None = None
    ca_file: Path | None = None


class GitEnvironment:
    """`empty` is a folder with nothing in it: the home, and where hooks would be."""

    def __init__(
        self, empty: Path, *, path: str = os.defpath, network: Network | None = None
    ) -> None:
        config = [("core.hooksPath", str(empty)), ("safe.directory", "*"), *_HARDENING]
        config += [(f"fetch.fsck.{name}", "error") for name in _FSCK_ERRORS]
        config += [(f"fetch.fsck.{name}", "ignore") for name in _FSCK_HARMLESS]
        network = network or Network()
        if network.proxy:
            config.append(("http.proxy", network.proxy))
        if network.ca_file:
            config.append(("http.sslCAInfo", str(network.ca_file)))
        self._config = config
        self._fixed = {
            "PATH": path,
            "HOME": str(empty),
            "XDG_CONFIG_HOME": str(empty),
            "LC_ALL": "C",
            "TZ": "UTC",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "GIT_EDITOR": "false",
            "GIT_PAGER": "cat",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_LITERAL_PATHSPECS": "1",
        }

    def without_network(self) -> dict[str, str]:
        return {**self._fixed, "GIT_ALLOW_PROTOCOL": "none", **_counted(self._config)}

    def reaching(self, access: GitAccess) -> dict[str, str]:
        """Only this URL's scheme is allowed, and the password is sent to this URL alone."""
        scheme = scheme_of(access.url)
        config = [*self._config, (f"protocol.{scheme}.allow", "always")]
        if access.password:
            pair = f"{access.user}:{access.password}".encode()
            header = f"Authorization: Basic {base64.b64encode(pair).decode()}"
            config.append((f"http.{access.url}.extraHeader", header))
        return {**self._fixed, "GIT_ALLOW_PROTOCOL": scheme, **_counted(config)}


def scheme_of(url: str) -> str:
    """`https`, or `http` to this machine; anything else is refused."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise Rejected("the repository's URL cannot be read") from None
    if not host or parts.username or parts.password or not url.isprintable() or " " in url:
        raise Rejected("the repository's URL must be like https://host/owner/name.git, and no more")
    if parts.scheme == "https" or (parts.scheme == "http" and _is_this_machine(host)):
        return parts.scheme
    raise Rejected(f"git goes by https, or by http to this machine, not by {parts.scheme[:20]!r}")


def secrets_of(access: GitAccess | None) -> list[str]:
    """What must not show up in anything that git says."""
    if access is None or not access.password:
        return []
    pair = f"{access.user}:{access.password}".encode()
    return [access.password, base64.b64encode(pair).decode()]


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _counted(config: list[tuple[str, str]]) -> dict[str, str]:
    counted = {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (key, value) in enumerate(config):
        counted[f"GIT_CONFIG_KEY_{number}"] = key
        counted[f"GIT_CONFIG_VALUE_{number}"] = value
    return counted


# ------------------------------------------------------------------ git's process

_CHUNK: Final = 1 << 16
_MOST_ERROR_BYTES: Final = 64 * 1024
_BLOCK: Final = 512
# The largest file that git may write is set before it starts: there is no option for a fetch.
_LIMITED: Final = ("/bin/sh", "-c", 'ulimit -f "$1" && shift && exec "$@"', "sh")
_REFUSALS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning)
    for pattern, meaning in (
        (
            r"couldn't find remote ref|no such ref|Remote branch .{1,300} not found",
            "there is no such branch",
        ),
        (
            r"authentication failed|could not read (user|pass)|error: 401|prompts disabled",
            "the forge does not accept the credentials",
        ),
        (r"error: 403|permission .{0,300}denied|access denied", "the credentials do not allow it"),
        (
            r"repository .{0,300}not found|error: 404",
            "there is no such repository, or it is hidden from us",
        ),
        (r"error: 30[1278]|redirect", "the repository has moved to another place"),
        (
            r"fsck error|error in .{0,200}object|invalid path|bad tree|hasDot|disallowed|fullPath",
            "the repository holds objects that are not safe to use",
        ),
        (
            r"file too large|file size limit|maximum allowed size|died of signal 25",
            "the repository is larger than is allowed",
        ),
        (
            r"hook declined|protected branch|push declined|remote rejected",
            "the forge refuses the push",
        ),
    )
)


class GitEnd(NamedTuple):
    status: int
    out: bytes
    said: str
    """Standard error, without credentials."""


class Git:
    """`most_file_bytes` bounds each file that git writes, a pack that comes in for one."""

    def __init__(
        self,
        environment: GitEnvironment,
        *,
        seconds: float = 300.0,
        most_bytes: int = 64 * 1024 * 1024,
        most_file_bytes: int = 2 * 1024**3,
    ) -> None:
        self._environment = environment
        self._seconds = seconds
        self._most_bytes = most_bytes
        blocks = max(1, most_file_bytes // _BLOCK)
        self._blocks = str(blocks)
        self.most_file_bytes = blocks * _BLOCK

    async def run(
        self,
        *arguments: str,
        git_dir: Path,
        work_tree: Path | None = None,
        index: Path | None = None,
        stdin: bytes = b"",
        access: GitAccess | None = None,
        more: Mapping[str, str] | None = None,
        also: Collection[int] = (),
    ) -> GitEnd:
        """Statuses in `also` are answers; any other than 0 raises.

        The repository is always named: none is ever looked for in a folder that others wrote to.
        """
        base = self._environment
        environment = base.reaching(access) if access else base.without_network()
        environment["GIT_DIR"] = str(git_dir)
        if work_tree is not None:
            environment["GIT_WORK_TREE"] = str(work_tree)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        end = await self._ended(
            arguments, work_tree or git_dir, {**environment, **(more or {})}, stdin, access
        )
        if end.status and end.status not in also:
            raise failure(arguments[0], end)
        return end

    async def _ended(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdin: bytes,
        access: GitAccess | None,
    ) -> GitEnd:
        try:
            process = await asyncio.create_subprocess_exec(
                *_LIMITED,
                self._blocks,
                "git",
                *arguments,
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RepositoryUnavailable(f"git cannot be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._seconds):
                out, errors, _ = await asyncio.gather(
                    _read(process.stdout, self._most_bytes),
                    _end_of(process.stderr, _MOST_ERROR_BYTES),
                    _feed(process.stdin, stdin),
                )
                status = await process.wait()
        except TimeoutError:
            raise RepositoryUnavailable(
                f"git {arguments[0]} did not end within {self._seconds:g} s"
            ) from None
        finally:
            await _kill_group(process)
        said = scrubbed(errors.decode(errors="replace"), secrets_of(access))
        return GitEnd(status, out, said)


def failure(name: str, end: GitEnd) -> Rejected | RepositoryUnavailable:
    """What git failed with, as something to change or something to try again."""
    if end.status == -signal.SIGXFSZ:
        return Rejected(f"git {name}: the repository is larger than is allowed")
    for pattern, meaning in _REFUSALS:
        if pattern.search(end.said):
            return Rejected(f"git {name}: {meaning} ({shown(end.said)})")
    return RepositoryUnavailable(f"git {name} failed with {end.status} ({shown(end.said)})")


def shown(said: str) -> str:
    """The last lines that git wrote, fit for a message."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = "; ".join(lines[-3:])
    return "".join(char if char.isprintable() else " " for char in text[-300:])


async def _read(stream: asyncio.StreamReader | None, most: int) -> bytes:
    received = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        received += chunk
        if len(received) > most:
            raise Rejected(f"git answered with more than {most} bytes, which is the limit")
    return bytes(received)


async def _end_of(stream: asyncio.StreamReader | None, most: int) -> bytes:
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        kept += chunk
        del kept[:-most]
    return bytes(kept)


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    # uvloop says by a RuntimeError that the reader has ended already.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    """git's own children are in its group, and end with it."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())
