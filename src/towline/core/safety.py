"""Whether a patch may be proposed at all, whoever made it and whatever it is good for.

All of this is told from the diff alone. A refusal is for good: the same patch is refused again.
Some things are refused whatever the settings say: paths that are tricks, symbolic links,
submodules, binary files. The rest is what a repository's `FixPolicy` allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from towline.core.diffs import EXECUTABLE, SUBMODULE, SYMLINK, FileChange, parse_diff
from towline.core.fixrun import FixPolicy
from towline.core.patch_paths import folded, matches, shown, trick
from towline.errors import Rejected

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
        said = f"has a line of more than {_LONGEST_LINE} characters, which nobody can review"
        yield Finding("line", said, file.path)
    if file.binary:
        yield Finding("binary", "is binary", file.path)
    if (
        file.new_mode == EXECUTABLE != file.old_mode
        and matches(file.path, policy.executable_paths) is None
    ):
        yield Finding("executable", "becomes executable", file.path)
