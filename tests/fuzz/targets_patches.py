"""Patches, and the files and reports that fixes are made from."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tests.fuzz.target import Target, joined, parts_of, refusing, sound_text_of, text_of
from towline.fix import diff, scanners
from towline.fix.diff import FileChange, parse_diff
from towline.fix.fixers.llm import diff_in
from towline.fix.fixers.pip_audit_report import advisories_in, needed_versions
from towline.fix.fixers.requirement_specs import raised, version_of
from towline.fix.fixers.requirements_files import bump, exact_pins
from towline.fix.model import FixPolicy
from towline.fix.safety import WORKFLOWS, check_patch, folded, matches, refusal, shown, trick
from towline.fix.secret_patterns import new_secrets, secrets_in
from towline_once.errors import Rejected

PACKAGE: Final = "jinja2"
FIXED: Final = "3.1.6"
_OLD: Final = ("0", "1.0", "1.4.2", "2.0.1")


def git_diffs(data: bytes) -> None:
    """What is read of a diff is whole: its hunks lead back from the new version to the old."""
    with refusing(Rejected):
        for file in parse_diff(data):
            _leads_back(file)
            assert file.path
            assert len(file.paths) in (1, 2)


def _leads_back(file: FileChange) -> None:
    new = b"".join(line for hunk in file.hunks for line in hunk.new)
    with refusing(Rejected):
        old = diff.before(file, new)
        assert old == b"".join(line for hunk in file.hunks for line in hunk.old)


def patch_checks(data: bytes) -> None:
    """Every patch is judged; links, submodules, binaries and tricks of paths are never let pass."""
    findings = check_patch(data, FixPolicy())
    said = refusal(findings)
    assert "\n" not in said
    if findings:
        return
    for file in parse_diff(data):
        assert not file.binary
        assert file.modes <= {"100644", diff.EXECUTABLE}
        assert all(trick(path) is None for path in file.paths)


def patch_paths(data: bytes) -> None:
    """A path that is no trick cannot leave its folder, nor be read as another one."""
    path = text_of(data)
    assert shown(path).isprintable()
    assert folded(folded(path)) == folded(path)
    matches(path[:400], WORKFLOWS)
    if trick(path) is None:
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert ".git" not in [part.lower() for part in path.split("/")]


def secrets_in_patches(data: bytes) -> None:
    """What is found of a secret is its kind and place, never its value."""
    with refusing(Rejected):
        files = parse_diff(data)
        for secret in new_secrets(files):
            (line,) = [
                line.text for file in files if file.path == secret.path
                for line in file.added if line.number == secret.line
            ][:1]  # fmt: skip
            values = [value for _, value in secrets_in(line)]
            assert values
            assert not any(value in str(secret) for value in values if len(value) > 30)
    secrets_in(sound_text_of(data))


def model_answers(data: bytes) -> None:
    """Of an answer comes a diff that is safe to judge, or nothing."""
    with refusing(Rejected):
        check_patch(diff_in(text_of(data)), FixPolicy())


def specifiers(data: bytes) -> None:
    """A raised specifier lets the fixed version in, nothing below it, and is not raised again."""
    specifier, fixed, poetry = map(sound_text_of, parts_of(data, 3))
    with refusing(Rejected):
        new = raised(specifier, fixed, poetry=bool(poetry))
        assert raised(new, fixed, poetry=bool(poetry)) == new
        if not poetry:
            _asks_for(new, fixed, specifier)


def _asks_for(specifier: str, fixed: str, before: str) -> None:
    """By the reference: what was changed lets the fixed version in, or a newer; nothing older."""
    with contextlib.suppress(InvalidSpecifier, InvalidVersion):
        asked, version = SpecifierSet(specifier), Version(fixed)
        if version.local is not None or "===" in specifier or "*" in specifier:
            return
        older = [one for one in (*_OLD, f"{fixed}.dev0") if _is_older(one, version)]
        if any(SpecifierSet(before).contains(one, prereleases=True) for one in older):
            named = [fixed, *(one.version for one in asked)]
            let_in = any(asked.contains(one, prereleases=True) for one in named)
            assert let_in, f"{specifier!r} shuts out {fixed!r}"
        assert not any(asked.contains(one, prereleases=True) for one in older), f"{specifier!r}"


def _is_older(one: str, version: Version) -> bool:
    try:
        return Version(one) < version
    except InvalidVersion:
        return False


def requirements(data: bytes) -> None:
    """Only the specifiers of the package change, and a second time nothing does."""
    _bumped("requirements.txt", sound_text_of(data))


def pyprojects(data: bytes) -> None:
    """As for requirements; and what was TOML stays TOML."""
    new = _bumped("pyproject.toml", sound_text_of(data))
    if new is not None:
        tomllib.loads(new)


def _bumped(path: str, text: str) -> str | None:
    """The text after it was raised, if it was."""
    raised_to: list[str] = []
    with refusing(Rejected):
        exact_pins(path, text)
        done = bump(path, text, PACKAGE, FIXED)
        if done is not None:
            assert len(done.was) == len(done.now) > 0
            assert done.changed or done.text == text
            again = bump(path, done.text, PACKAGE, FIXED)
            assert again is not None
            assert again.text == done.text
            raised_to.append(done.text)
    return raised_to[0] if raised_to else None


def audit_reports(data: bytes) -> None:
    """Of a report of pip-audit only versions that are newer are taken."""
    with refusing(Rejected):
        for needed in needed_versions(text_of(data)):
            version_of(needed.fixed)
        for advisory in advisories_in(text_of(data)):
            assert version_of(advisory.fixed or "") > version_of(advisory.vulnerable or "")


def scan_reports(data: bytes) -> None:
    """Findings of bandit and of SARIF have a line to show, and are not new beside themselves."""
    for read in (
        scanners.read_sarif,
        lambda raw: scanners.read_bandit(raw, {"a": ("a.py", b"x\ny\n")}),
    ):
        with refusing(Rejected):
            found = read(data)
            assert all("\n" not in str(one) for one in found)
            assert scanners.new_findings(found, found) == ()
    with refusing(Rejected):
        scanners.bandit_unread(data)


DIFF: Final = (
    b"diff --git a/src/a.py b/src/a.py\nindex 1111111..2222222 100644\n--- a/src/a.py\n"
    b"+++ b/src/a.py\n@@ -1,2 +1,3 @@ def f():\n one\n-two\n+three\n+four\n\\ No newline at end of"
    b" file\n"
)


def _diff_seeds() -> Iterator[bytes]:
    yield DIFF
    yield (
        b'diff --git "a/\\303\\274 b" "b/\\303\\274 b"\nnew file mode 100755\n'
        b'index 0000..1111\n--- /dev/null\n+++ "b/\\303\\274 b"\t\n@@ -0,0 +1 @@\n+x\n'
    )
    yield (
        b"diff --git a/a b/c\nsimilarity index 90%\nrename from a\nrename to c\n"
        b"diff --git a/l b/l\nnew file mode 120000\nindex 0000..1111\n--- /dev/null\n+++ b/l\n"
        b"@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n"
    )
    yield (
        b"diff --git a/b.bin b/b.bin\nindex 1111..2222 100644\nGIT binary patch\nliteral 3\n"
        b"KcmZQzU|?WiU}k^-01E&K\n\ndiff --git a/x b/x\nold mode 100644\nnew mode 100755\n"
    )
    yield DIFF.replace(b"+three", b"+ghp_" + b"a1" * 20 + b" AKIAABCDEFGHIJKLMNOP")


def _answer_seeds() -> Iterator[bytes]:
    yield b"Here it is:\n```diff\n" + DIFF + b"```\nDone."
    yield DIFF + b"\n\n"
    yield b"```patch\n--- a/a\n+++ b/a\n@@ -1,9 +1 @@\n a\n\n+b\n```"


def _spec_seeds() -> Iterator[bytes]:
    for text in (">=1.0,<2", "==2.0.1", "~=1.4.2", "!=1.5, >1", "==1.*", "", "===1.0", "<=1.0"):
        yield joined(text.encode(), b"3.1.6")
    yield joined(b"^1.2", b"2.0", b"p")
    yield joined(b"<2", b"1!3.0rc1.post1.dev2+local")


def _requirement_seeds() -> Iterator[bytes]:
    yield b"# c\njinja2==2.0 ; python_version > '3'  # why\nJinja2[i18n] >= 2, <3\na==1 \\\n -x\n"
    yield b"-r base.txt\njinja2 @ https://h/j.zip\n"
    yield b"jinja2==2.0 --hash=sha256:aa\r\njinja2 (>=2.0)\r\n"


def _pyproject_seeds() -> Iterator[bytes]:
    yield (
        b'[project]\ndependencies = ["jinja2>=2,<3", "a"]\n[project.optional-dependencies]\n'
        b'x = [\'Jinja2[i18n]==2.0 ; python_version > "3"\']\n[dependency-groups]\nd=["jinja2"]\n'
    )
    yield (
        b'[tool.poetry.dependencies]\njinja2 = "^2.0"\n"b" = {version = "1", extras = ["x"]}\n'
        b'[tool.poetry.group.dev.dependencies.jinja2]\nversion = "~2.1"  # c\n'
    )


def _audit_seeds() -> Iterator[bytes]:
    yield (
        b'{"dependencies":[{"name":"jinja2","version":"2.0","vulns":[{"id":"PYSEC-1","aliases":'
        b'["CVE-2024-1"],"fix_versions":["3.1.3","2.9rc1"]}]},{"name":"a","skip_reason":"x"}]}'
    )


def _scan_seeds() -> Iterator[bytes]:
    yield (
        b'{"runs":[{"results":[{"ruleId":"R1","level":"error","message":{"text":"m"},'
        b'"partialFingerprints":{"a":"b"},"locations":[{"physicalLocation":{"artifactLocation":'
        b'{"uri":"a.py"},"region":{"startLine":3,"snippet":{"text":"x"}}}}]}]}]}'
    )
    yield (
        b'{"errors":[{"filename":"b"}],"results":[{"filename":"a","test_id":"B101",'
        b'"line_number":1,"line_range":[1,2],"issue_text":"t"}]}'
    )


_DIFF_WORDS: Final = (
    *(b"diff --git a/", b" b/", b"\n--- a/", b"\n+++ b/", b"\n@@ -1 +1 @@\n", b"\n@@ -0,0 +1,2 @@"),
    *(b"new file mode 120000\n", b"deleted file mode 100644\n", b"rename from ", b"rename to "),
    *(
        b"copy from ",
        b"copy to ",
        b"index 1111..2222 160000\n",
        b"/dev/null",
        b"GIT binary patch\n",
    ),
    *(b"\\ No newline at end of file\n", b'"', b"\\303", b".git/", b"../", b"\r", b"\t"),
)
_SPEC_WORDS: Final = (
    *(b"\x1e", b"==", b"~=", b"!=", b">=", b"<=", b"<", b">", b"^", b"~", b".*", b",", b" ", b"1!"),
    *(b"rc1", b".post1", b".dev1", b"+l", b"===", b"-1", b"v", b"\xd9\xa3", b"\xc5\xbf"),
)
_FILE_WORDS: Final = (
    *(b"jinja2", b"==", b">=", b"<3", b"[x]", b" ; ", b" # ", b" --hash=sha256:a", b"\\\n", b" @ "),
    *(b"[tool.poetry.dependencies]\n", b"jinja2 = ", b"version = ", b'"""', b"'''", b"[[", b"{"),
    *(b"\r\n", b"(", b")", b"    ", b"\x0b", b"\xe2\x80\xa8", b"inf", b"nan", b"[project]\n"),
)
_REPORT_WORDS: Final = (
    *(b'"dependencies":[', b'"vulns":[', b'"fix_versions":["', b'"aliases":[', b'"runs":[{'),
    *(
        b'"results":[{',
        b'"fingerprints":{',
        b'"line_range":[',
        b'"locations":[',
        b"[[[[[[[[",
        b"1e9",
    ),
)
TARGETS: Final = (
    Target("diffs.parse", git_diffs, _diff_seeds, _DIFF_WORDS),
    Target("diffs.safety", patch_checks, _diff_seeds, _DIFF_WORDS),
    Target("diffs.secrets", secrets_in_patches, _diff_seeds, (*_DIFF_WORDS, b"ghp_", b"://a:b@")),
    Target("diffs.model", model_answers, _answer_seeds, (*_DIFF_WORDS, b"```diff\n", b"\n```\n")),
    Target("diffs.paths", patch_paths, lambda: [b"b.py", b".GIT/x", b"gi~1", "\u2024git".encode()],
           (b"/", b"..", b".git", b"git~1", b":", b"\\", b".", b" ", "\u200b".encode())),
    Target("requirements.specifier", specifiers, _spec_seeds, _SPEC_WORDS),
    Target("requirements.file", requirements, _requirement_seeds, _FILE_WORDS),
    Target("requirements.pyproject", pyprojects, _pyproject_seeds, _FILE_WORDS),
    Target("reports.audit", audit_reports, _audit_seeds, _REPORT_WORDS),
    Target("reports.scan", scan_reports, _scan_seeds, _REPORT_WORDS),
)  # fmt: skip
