"""Decides whether a patch may be proposed at all, whatever made it and whatever it is for.

All of this is told from the diff alone. A refusal is for good: the same patch is refused again.
Some things are refused whatever the settings say: paths that are tricks, symbolic links,
submodules, binary files. The rest is what a repository's `FixPolicy` allows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from towline.fix.diff import EXECUTABLE, SUBMODULE, SYMLINK, FileChange, parse_diff
from towline.fix.model import FixPolicy
from towline_once.errors import Rejected

# ------------------------------------------------------------------ paths
# Paths in a patch: which are tricks, and which globs they match.
#
# A trick is a path that is read differently by git, by a file system or by a person. On some file
# systems `.GIT`, `.git.` and `.git` with an invisible character in it are all the folder `.git`,
# whose hooks and settings are run.

_LONGEST: Final = 400
_SHOWN: Final = 120
_SHORT_NAME = re.compile(r"gi[a-z0-9]{0,4}~\d+")
"""What Windows calls `.git` and its kin besides."""
_LOOK_ALIKES: Final = str.maketrans(
    {
        **dict.fromkeys("\u2024\u00b7\u2027\u30fb\u2219\u22c5\u0701\u0702\ua4f8", "."),
        **dict.fromkeys("\u0261\u0581\u018d\u1d83", "g"),
        **dict.fromkeys("\u0456\u0131\u03b9\u0269\u04cf\u2373\u1d09\u01c0", "i"),
        **dict.fromkeys("\u0442\u03c4\u1d1b\u0163\u021b\u01ad", "t"),
        **dict.fromkeys("\u2044\u2215\u29f8\u2571", "/"),
    }
)
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"})
_UNWRITABLE: Final = _INVISIBLE - {"Mn", "Me"}


def trick(path: str) -> str | None:
    """Why a path is not to be trusted whatever it leads to; None for an honest one."""
    if not path or len(path) > _LONGEST:
        return "its path is empty or too long"
    if any("\ud800" <= char <= "\udfff" for char in path):
        return "its path is not UTF-8"
    if any(unicodedata.category(char) in _UNWRITABLE for char in path):
        return "its path holds control or invisible characters"
    if "\\" in path or ":" in path:
        return "its path holds a character that separates folders or drives elsewhere"
    if path.startswith("/"):
        return "its path is absolute"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "its path steps aside or upwards"
    if any(part != part.strip() or part.endswith(".") for part in parts):
        return "its path has a name that ends in a space or a dot, or begins with a space"
    return _about_git(path, parts)


def _about_git(path: str, parts: list[str]) -> str | None:
    if unicodedata.normalize("NFC", path) != path:
        return "its path is not in the usual form of Unicode"
    names = [name for part in parts for name in folded(part).split("/")]
    if any(name.rstrip(" .") == ".git" or _SHORT_NAME.fullmatch(name) for name in names):
        return "its path leads into the folder of git itself, or looks as if it did"
    if ".gitmodules" in names:
        return "it declares submodules"
    return None


@lru_cache(maxsize=4096)
def folded(path: str) -> str:
    """What a path looks like: without case, invisible characters and letters that resemble ours."""
    apart = unicodedata.normalize("NFKD", path)
    visible = "".join(char for char in apart if unicodedata.category(char) not in _INVISIBLE)
    return unicodedata.normalize("NFKC", visible.casefold().translate(_LOOK_ALIKES))


def matches(path: str, globs: Iterable[str]) -> str | None:
    """The first glob that matches.

    `*` and `?` stay within a name, `**` does not. A glob without a slash holds for a file or a
    folder of that name anywhere, another one from the top; it covers what is below a folder, too.
    """
    return next((glob for glob in globs if _compiled(glob).fullmatch(path)), None)


@lru_cache(maxsize=1024)
def _compiled(glob: str) -> re.Pattern[str]:
    inner = glob.strip("/")
    anywhere = "(?:.*/)?" if "/" not in glob.rstrip("/") else ""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", inner)
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    regex = "".join(meanings.get(piece, re.escape(piece)) for piece in pieces)
    return re.compile(f"{anywhere}{regex}(?:/.*)?", re.DOTALL)


def shown(path: str) -> str:
    """A path, fit for a line of text."""
    safe = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)
    return safe if len(safe) <= _SHOWN else f"{safe[:_SHOWN]}…"


# ------------------------------------------------------------------ the rules

WORKFLOWS: Final = (
    *(".github", ".gitlab", ".gitlab-ci.yml", ".gitlab-ci.yaml", "Jenkinsfile", "Jenkinsfile.*"),
    *(".circleci", ".travis.yml", "azure-pipelines.yml", "azure-pipelines.yaml", ".azure"),
    *(".azure-pipelines", "bitbucket-pipelines.yml", ".drone.yml", ".buildkite", ".woodpecker"),
    *(".woodpecker.yml", "appveyor.yml", ".appveyor.yml", ".teamcity", ".ci", "cloudbuild.yaml"),
    *(".tekton", ".semaphore", ".cirrus.yml", ".forgejo", ".gitea"),
    *(".husky", ".githooks", ".pre-commit-config.yaml", ".pre-commit-hooks.yaml"),
)
"""What decides on its own what is run in CI or on people's machines."""

POLICIES: Final = (
    *("CODEOWNERS", "OWNERS", ".policy.yml", ".policy.yaml", ".mergify.yml"),
    *(".kodiak.toml", ".bulldozer.yml", "renovate.json", "renovate.json5", ".renovaterc*"),
    *(".towline*", "towline.toml", ".gitattributes", ".bandit", ".secrets.baseline", ".semgrep*"),
    *(".gitleaks.toml", ".snyk", "sonar-project.properties", "SECURITY.md"),
)
"""What decides what may be merged, or what scanners overlook."""

CREDENTIALS: Final = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.asc", "*.gpg"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".ssh", ".gnupg", ".aws", ".kube"),
    *(".env", ".env.*", ".envrc", ".netrc", "_netrc", ".pypirc", ".npmrc", ".htpasswd"),
    *(".git-credentials", ".docker", "kubeconfig"),
)
"""What holds keys wherever it is."""

_FREE_REMOVALS: Final = 100
_MOST_REMOVED_SHARE: Final = 0.9
_LONGEST_LINE: Final = 10_000
_MOST_NAMED: Final = 20


class Finding(NamedTuple):
    """`rule` is short and stays; `reason` is for people."""

    rule: str
    reason: str
    path: str | None = None

    def __str__(self) -> str:
        return self.reason if self.path is None else f"{shown(self.path)}: {self.reason}"


def check_patch(diff: bytes, policy: FixPolicy) -> tuple[Finding, ...]:
    """Everything that is wrong with a patch; nothing if it may go on."""
    if len(diff) > policy.max_diff_bytes:
        said = f"the patch has {len(diff)} bytes, and {policy.max_diff_bytes} are allowed"
        return (Finding("size", said),)
    try:
        files = parse_diff(diff)
    except Rejected as unreadable:
        return (Finding("unreadable", f"the patch cannot be read: {unreadable}"),)
    if not files:
        return (Finding("empty", "the patch changes nothing"),)
    found = [*_sizes(files, policy), *_clashes(files)]
    for file in files:
        found += _about(file, policy)
    return tuple(found)


def refusal(findings: Sequence[Finding]) -> str:
    """All that was found in one text, the first ones by name."""
    named = "; ".join(str(finding) for finding in findings[:_MOST_NAMED])
    more = len(findings) - _MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named


def _sizes(files: Sequence[FileChange], policy: FixPolicy) -> Iterator[Finding]:
    if len(files) > policy.max_files:
        yield Finding(
            "files", f"the patch changes {len(files)} files, and {policy.max_files} are allowed"
        )
    added = sum(len(file.added) for file in files)
    removed = sum(len(file.removed) for file in files)
    if added + removed > policy.max_lines:
        said = f"the patch changes {added + removed} lines, and {policy.max_lines} are allowed"
        yield Finding("lines", said)
    deleted = sum(file.deleted for file in files)
    if deleted > policy.max_deleted_share * len(files):
        said = f"the patch deletes {deleted} of the {len(files)} files that it changes"
        yield Finding("deletions", said)
    if removed > max(_FREE_REMOVALS, _MOST_REMOVED_SHARE * (added + removed)):
        said = f"the patch does little but take away: {removed} lines, against {added} new ones"
        yield Finding("deletions", said)


def _clashes(files: Sequence[FileChange]) -> Iterator[Finding]:
    """Names that are one and the same where case does not count."""
    seen: dict[str, str] = {}
    for path in (path for file in files for path in file.paths):
        if seen.setdefault(folded(path), path) != path:
            said = f"differs from {shown(seen[folded(path)])} by case or look alone"
            yield Finding("path", said, path)


def _about(file: FileChange, policy: FixPolicy) -> Iterator[Finding]:
    for path in file.paths:
        if (why := trick(path)) is not None:
            yield Finding("path", why, path)
        elif (finding := _place(path, policy)) is not None:
            yield finding
    yield from _kind(file, policy)


def _place(path: str, policy: FixPolicy) -> Finding | None:
    """Whether a file may be changed, by where it is."""
    looks = folded(path)
    if glob := _seen_in(path, looks, policy.forbidden_paths):
        return Finding("forbidden", f"is forbidden by the settings ({glob})", path)
    named = [glob for glob in policy.allowed_paths if glob.rsplit("/", 1)[-1].strip("*")]
    if (glob := _seen_in(path, looks, CREDENTIALS)) and matches(path, named) is None:
        return Finding("credentials", f"is a place for keys ({glob})", path)
    if not policy.allow_workflows and (glob := _seen_in(path, looks, (*WORKFLOWS, *POLICIES))):
        said = f"decides what CI runs or what may be merged ({glob}), which no fix changes"
        return Finding("workflow", said, path)
    if policy.allowed_paths and matches(path, policy.allowed_paths) is None:
        return Finding("not allowed", "is not among the paths that may be changed", path)
    return None


def _seen_in(path: str, looks: str, globs: Sequence[str]) -> str | None:
    return matches(path, globs) or next(
        (glob for glob in globs if matches(looks, [glob.casefold()])), None
    )


def _kind(file: FileChange, policy: FixPolicy) -> Iterator[Finding]:
    """Whether it is a plain file with plain text in it."""
    if SYMLINK in file.modes:
        yield Finding("symlink", "is a symbolic link", file.path)
    elif SUBMODULE in file.modes:
        yield Finding("submodule", "is a submodule", file.path)
    elif unusual := sorted(file.modes - {"100644", EXECUTABLE}):
        yield Finding("mode", f"has the unusual mode {unusual[0]}", file.path)
    if any(len(line.text) > _LONGEST_LINE for line in (*file.added, *file.removed)):
        said = f"has a line of more than {_LONGEST_LINE} characters, which is too long to review"
        yield Finding("line", said, file.path)
    if file.binary:
        yield Finding("binary", "is binary", file.path)
    if (
        file.new_mode == EXECUTABLE != file.old_mode
        and matches(file.path, policy.executable_paths) is None
    ):
        yield Finding("executable", "becomes executable", file.path)
