"""The environment that git runs in: nothing of ours, nor of the machine's.

A repository can bring hooks, filters, external diffs, submodules and transports that run programs.
All of these are set aside here, once, for every run of git. Credentials travel in the environment
and nowhere else: not on a command line, in a remote, in a file or in a message.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from towline.errors import Rejected
from towline.ports.forge import GitAccess

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
