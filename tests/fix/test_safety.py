"""What a patch may be, told from its diff."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.fix.workshop import Tree
from towline.fix.model import FixPolicy
from towline.fix.safety import Finding, check_patch, matches, refusal, trick

POLICY = FixPolicy()


def new_file(path: str, lines: int = 1, mode: str = "100644") -> bytes:
    quoted = "".join(
        char if " " < char < "\x7f" and char not in '"\\' else _octal(char) for char in path
    )
    body = "".join(f"+line {number}\n" for number in range(lines))
    return (
        f'diff --git "a/{quoted}" "b/{quoted}"\nnew file mode {mode}\nindex 0000000..1111111\n'
        f'--- /dev/null\n+++ "b/{quoted}"\n@@ -0,0 +1,{lines} @@\n{body}'
    ).encode()


def gone_file(path: str, lines: int) -> bytes:
    body = "".join(f"-line {number}\n" for number in range(lines))
    return (
        f"diff --git a/{path} b/{path}\ndeleted file mode 100644\nindex 1111111..0000000\n"
        f"--- a/{path}\n+++ /dev/null\n@@ -1,{lines} +0,0 @@\n{body}"
    ).encode()


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))


def rules(diff: bytes, policy: FixPolicy = POLICY) -> list[str]:
    return [finding.rule for finding in check_patch(diff, policy)]


@pytest.mark.parametrize(
    "path",
    [
        "src/app.py",
        "README.md",
        "docs/ünïcode.md",
        "a-b_c/d+e (1).txt",
        ".gitignore",
        "git/x.py",
        "src/github/workflows.py",
        "digit~1.txt",
        "src/.hidden",
    ],
)
def test_honest_paths_pass(path: str) -> None:
    """Everyday names, also those that only contain a suspicious word."""
    assert rules(new_file(path)) == []


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../b",
        "/etc/passwd",
        "a//b",
        "./a",
        "a/.",
        ".git/hooks/post-checkout",
        "sub/.git/config",
        ".GIT/config",
        ".Git/config",
        ".git./config",
        ".git /config",
        ".g\u200cit/config",
        "\uff0egit/config",
        "\u2024git/config",
        ".g\u0456t/config",
        ".\u0261it/config",
        ".gi\u0301t/config",
        "GIT~1/config",
        ".git::$INDEX_ALLOCATION/config",
        "a\\..\\b",
        "C:/x",
        "new\nline",
        "nul\0",
        "bidi\u202etxt.py",
        "not\udcffutf8",
        ".gitmodules",
        ".GitModules",
        "cafe\u0301.py",
        "x" * 500,
    ],
)
def test_tricks_with_paths_are_refused(path: str) -> None:
    """Whatever a file system or a person may take for something else, by any setting."""
    lenient = FixPolicy(allowed_paths=("**",), allow_workflows=True)
    assert trick(path) is not None
    assert rules(new_file(path), lenient)[:1] == ["path"]


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        (".github/workflows/ci.yml", "workflow"),
        (".GitHub/Workflows/ci.yml", "workflow"),
        (".g\u0456thub/workflows/ci.yml", "workflow"),
        (".gitlab-ci.yml", "workflow"),
        ("ci/Jenkinsfile", "workflow"),
        ("jenkinsfile", "workflow"),
        ("CODEOWNERS", "workflow"),
        ("docs/CODEOWNERS", "workflow"),
        (".policy.yml", "workflow"),
        (".towline.toml", "workflow"),
        ("towline.toml", "workflow"),
        (".gitattributes", "workflow"),
        (".pre-commit-config.yaml", "workflow"),
        ("certs/server.pem", "credentials"),
        ("SERVER.PEM", "credentials"),
        (".env", "credentials"),
        ("deploy/.env.production", "credentials"),
        ("home/.ssh/config", "credentials"),
    ],
)
def test_places_that_are_forbidden_by_default(path: str, rule: str) -> None:
    """CI, policies and keys are left alone, in any spelling; one finding says which glob."""
    (finding,) = check_patch(new_file(path), POLICY)
    assert finding.rule == rule
    assert "(" in finding.reason


def test_what_is_forbidden_by_default_can_be_allowed() -> None:
    """Workflows by their own switch, a key's place by a glob that names such files."""
    assert rules(new_file(".github/workflows/ci.yml"), FixPolicy(allow_workflows=True)) == []
    key = new_file("tests/data/ca.pem")
    assert rules(key, FixPolicy(allowed_paths=("tests/data/*.pem",))) == []
    assert rules(key, FixPolicy(allowed_paths=("tests/**",))) == ["credentials"]


def test_the_settings_globs_hold() -> None:
    """What is forbidden wins over what is allowed; what is not named is not allowed."""
    policy = FixPolicy(allowed_paths=("src/**", "*.toml"), forbidden_paths=("src/vendor",))
    assert rules(new_file("src/a.py"), policy) == []
    assert rules(new_file("deep/down/x.toml"), policy) == []
    assert rules(new_file("docs/a.md"), policy) == ["not allowed"]
    assert rules(new_file("src/vendor/a.py"), policy) == ["forbidden"]
    assert rules(new_file("src/Vendor/a.py"), policy) == ["forbidden"]


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("*.pem", "a/b/c.pem", True),
        ("a/*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**", "a/b/c.py", True),
        ("a/**/c.py", "a/c.py", True),
        ("**/c.py", "c.py", True),
        ("vendor/", "x/vendor/y", True),
        ("/vendor", "x/vendor/y", False),
        ("a.b", "aXb", False),
        ("?.py", "a.py", True),
        ("?.py", "ab.py", False),
        ("[x].py", "x.py", False),
        ("*", "a/b", True),
    ],
)
def test_globs(glob: str, path: str, fits: bool) -> None:
    """A glob without a slash holds anywhere, one with a slash from the top."""
    assert (matches(path, [glob]) == glob) is fits


def test_limits_hold_on_files_lines_and_bytes() -> None:
    """Each limit has a finding of its own, with both numbers in it."""
    many = b"".join(new_file(f"f{number}.py") for number in range(4))
    policy = dataclasses.replace(POLICY, max_files=3)
    (finding,) = check_patch(many, policy)
    assert str(finding) == "the patch changes 4 files, and 3 are allowed"
    assert rules(new_file("a", lines=11), dataclasses.replace(POLICY, max_lines=10)) == ["lines"]
    assert rules(new_file("a"), dataclasses.replace(POLICY, max_diff_bytes=50)) == ["size"]


def test_deleting_is_bounded() -> None:
    """A patch that makes a failure go away by taking things away is refused."""
    assert rules(gone_file("test_x.py", 3)) == ["deletions"]
    assert rules(gone_file("old.py", 3) + new_file("new.py", 3)) == []
    assert rules(gone_file("old.py", 500) + new_file("new.py", 3)) == ["deletions"]
    assert rules(gone_file("a.py", 3), FixPolicy(max_deleted_share=1.0)) == []


def test_kinds_of_files_from_real_git(tmp_path: Path) -> None:
    """Links, submodules, binaries and new executables are each refused by name."""
    tree = Tree(tmp_path / "r", {"run.sh": "echo\n", "a.py": "x = 1\n"})
    (tree.folder / "run.sh").chmod(0o755)
    (tree.folder / "link").symlink_to("/etc/passwd")
    Tree(tree.folder / "module", {"y": "y\n"})
    tree.write({"blob": b"\0\1", "a.py": "x = 2\n"})
    found = {(one.path, one.rule) for one in check_patch(tree.changes(), POLICY)}
    assert found == {
        ("run.sh", "executable"),
        ("link", "symlink"),
        ("module", "submodule"),
        ("blob", "binary"),
    }
    allowed = FixPolicy(executable_paths=("*.sh",))
    assert "executable" not in rules(tree.changes(), allowed)


def test_a_file_that_becomes_a_link_is_refused(tmp_path: Path) -> None:
    """Git writes it as a deletion and a new link; either is seen."""
    tree = Tree(tmp_path, {"a": "x\n", "b": "y\n"})
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("b")
    assert "symlink" in rules(tree.changes())


def test_a_file_with_text_hidden_by_attributes_is_refused(tmp_path: Path) -> None:
    """What git is told to take for binary has no lines to look at."""
    tree = Tree(tmp_path, {".gitattributes": "*.py -diff\n", "a.py": "x\n"})
    tree.write({"a.py": "y\n"})
    assert rules(tree.changes()) == ["binary"]


def test_names_that_differ_by_case_alone_are_refused() -> None:
    """On many machines they are one file."""
    assert rules(new_file("Readme") + new_file("README")) == ["path"]


def test_nothing_and_nonsense_are_refused() -> None:
    """An empty patch and one that cannot be read are no patches."""
    assert rules(b"") == ["empty"]
    assert rules(b"hello\n") == ["unreadable"]


def test_a_refusal_is_one_line_that_people_can_read() -> None:
    """Control characters are spelt out, and a long list is cut."""
    findings = check_patch(new_file("new\nline\x1b[31m"), POLICY)
    assert refusal(findings).isprintable()
    assert refusal([Finding("x", "wrong", "a")] * 30).endswith("; and 10 more")
