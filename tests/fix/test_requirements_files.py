"""One dependency is raised, and nothing else in the file changes."""

from __future__ import annotations

import difflib
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.fix.fixers.pip_audit_report import Vulnerable, needed_versions
from towline.fix.fixers.requirement_specs import raised, version_of
from towline.fix.fixers.requirements_files import bump, exact_pins, is_requirements_file
from towline_once.errors import Rejected

FIXED = "2.5.1"


def changed_lines(old: str, new: str) -> list[str]:
    diff = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line for line in diff if line[:1] in "+-" and line[:3] not in ("---", "+++")]


@pytest.mark.parametrize(
    ("specifier", "after"),
    [
        ("==2.0", "==2.5.1"),
        ("===2.0", "===2.5.1"),
        ("==2.6.0", "==2.6.0"),
        ("==2.5.1", "==2.5.1"),
        ("==2.0.*", "==2.5.*,>=2.5.1"),
        ("==2.*", "==2.*,>=2.5.1"),
        ("", ">=2.5.1"),
        ("<3", "<3,>=2.5.1"),
        ("<2.5", "<3,>=2.5.1"),
        ("<=2.2", "<=2.5.1,>=2.5.1"),
        ("~=2.0", "~=2.0,>=2.5.1"),
        ("~=2.5.0", "~=2.5.1"),
        ("~=2.0.1", "~=2.5.1"),
        ("~=1.4", "~=2.5,>=2.5.1"),
        (">=2,<3", ">=2.5.1,<3"),
        (">2", ">=2.5.1"),
        (">=3", ">=3"),
        ("!=2.1,>=2", "!=2.1,>=2.5.1"),
        ("==2.5.1rc1", "==2.5.1"),
        ("==2.5.1.post1", "==2.5.1.post1"),
        ("==2.5.1.dev3", "==2.5.1"),
        ("==1!1.0", "==1!1.0"),
    ],
)
def test_specifiers(specifier: str, after: str) -> None:
    """Pins move, floors rise, ceilings in the way are lifted; what is enough stays."""
    assert raised(specifier, FIXED) == after
    assert raised(after, FIXED) == after


@pytest.mark.parametrize(
    ("specifier", "after"),
    [("^2.0", "^2.5.1"), ("~2.0", "~2.5.1"), ("2.0", "2.5.1"), ("*", ">=2.5.1"), ("^3", "^3")],
)
def test_poetry_specifiers(specifier: str, after: str) -> None:
    """Poetry has signs of its own."""
    assert raised(specifier, FIXED, poetry=True) == after


@pytest.mark.parametrize(
    "specifier",
    ["!=2.5.1", "!=2.5.1+local", "~=2", "==two", "^2.0", "==2.0 or so", "!=2.5.*"],
)
def test_specifiers_that_cannot_be_raised(specifier: str) -> None:
    """The fixed version is shut out, or the specifier is not understood."""
    with pytest.raises(Rejected):
        raised(specifier, FIXED)


def test_versions_are_ordered_as_they_are_released() -> None:
    """Development, pre-releases, the release, what comes after it; zeros at the end are nothing."""
    rising = ["1.0.dev1", "1.0a1", "1.0b1", "1.0rc1", "1.0", "1.0.post1", "1.1", "1.10", "1!0.1"]
    versions = [version_of(text) for text in rising]
    assert versions == sorted(versions)
    assert version_of("1.0.0") == version_of("v1")


REQUIREMENTS = """\
# The web
-r base.txt
--no-binary :all:
Flask==2.0  # pinned by hand
requests[socks,security] == 2.0 ; python_version >= "3.8"  # keep
requests-toolbelt==0.9
urllib3\t>=1.26,<2

not-requests==2.0
"""


def test_a_requirements_file_keeps_everything_else() -> None:
    """Extras, markers, comments, spaces and neighbours with similar names stay."""
    result = bump("requirements.txt", REQUIREMENTS, "Requests", FIXED)
    assert result is not None
    assert changed_lines(REQUIREMENTS, result.text) == [
        '-requests[socks,security] == 2.0 ; python_version >= "3.8"  # keep',
        '+requests[socks,security] == 2.5.1 ; python_version >= "3.8"  # keep',
    ]
    assert (result.was, result.now) == (("== 2.0",), ("== 2.5.1",))


def test_windows_line_ends_and_a_missing_last_one_stay() -> None:
    """Bytes that are not the pin are not touched."""
    result = bump("requirements.txt", "a==1\r\nrequests==2.0\r\nb==1", "requests", FIXED)
    assert result is not None
    assert result.text == "a==1\r\nrequests==2.5.1\r\nb==1"


@pytest.mark.parametrize(
    "text",
    [
        "requests==2.0 --hash=sha256:abc\n",
        "requests==2.0 \\\n    --hash=sha256:abc \\\n    --hash=sha256:def\n",
        "requests @ https://example.test/requests.whl\n",
    ],
)
def test_hashes_and_addresses_are_refused(text: str) -> None:
    """A hash would no longer be that of the file, and an address has no version."""
    with pytest.raises(Rejected, match=r"requests is (pinned by hashes|taken from an address)"):
        bump("requirements.txt", text, "requests", FIXED)


def test_hashes_of_a_version_that_is_fine_are_no_reason_to_refuse() -> None:
    """Nothing has to change there."""
    result = bump("requirements.txt", "requests==2.6 --hash=sha256:abc\n", "requests", FIXED)
    assert result is not None
    assert not result.changed


PYPROJECT = """\
[build-system]
requires = ["hatchling"]

[project]
name = "app"
description = "says requests==2.0 in words"
dependencies = [
  "flask>=2",
  "requests>=2.0,<3",  # the old one
]

[project.optional-dependencies]
proxy = ['requests[socks]==2.0; sys_platform != "win32"']

[tool.poetry.dependencies]
python = "^3.11"
requests = "^2.0" # here too
Requests_Toolbelt = "1"

[tool.poetry.group.dev.dependencies]
requests = { version = "~2.0", extras = ["socks"] }

[tool.other]
requests = "2.0"
"""


def test_pyproject_is_changed_where_it_names_dependencies() -> None:
    """Lists of the project, its extras and poetry's tables, and no other text."""
    result = bump("pyproject.toml", PYPROJECT, "requests", FIXED)
    assert result is not None
    assert [line for line in changed_lines(PYPROJECT, result.text) if line[0] == "+"] == [
        '+  "requests>=2.5.1,<3",  # the old one',
        "+proxy = ['requests[socks]==2.5.1; sys_platform != \"win32\"']",
        '+requests = "^2.5.1" # here too',
        '+requests = { version = "~2.5.1", extras = ["socks"] }',
    ]
    assert tomllib.loads(result.text)["tool"]["other"] == {"requests": "2.0"}


def test_pyproject_in_a_form_that_is_not_understood_is_refused() -> None:
    """What was written is read back, and must say what was meant."""
    odd = '[tool.poetry.dependencies]\n"requests" = \\\n"2.0"\n'
    twofold = '[tool.poetry]\ndependencies = { requests = "2.0" }\n'
    for text in (odd, twofold, "not toml ["):
        with pytest.raises(Rejected):
            bump("pyproject.toml", text, "requests", FIXED)


def test_a_file_without_the_package_is_left_alone() -> None:
    """Neither is one of another kind."""
    assert bump("requirements.txt", "flask==1\n", "requests", FIXED) is None
    assert bump("pyproject.toml", "[project]\nname = 'x'\n", "requests", FIXED) is None
    assert bump("setup.cfg", "requests==2.0\n", "requests", FIXED) is None


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("requirements.txt", True),
        ("requirements-dev.in", True),
        ("dev-requirements.txt", True),
        ("requirements/base.txt", True),
        ("deep/constraints.txt", True),
        ("requirements.lock", True),
        ("notes.txt", False),
        ("requirements.md", False),
    ],
)
def test_which_files_are_lists_of_requirements(path: str, is_one: bool) -> None:
    """By their usual names."""
    assert is_requirements_file(path) is is_one


@given(text=st.text(max_size=200))
def test_any_text_gives_a_result_or_a_refusal(text: str) -> None:
    """Nothing else is raised, and a file without the package is never changed."""
    for path in ("requirements.txt", "pyproject.toml"):
        try:
            result = bump(path, text, "requests", FIXED)
        except Rejected:
            continue
        assert result is None or "requests" in text.lower()


def test_exact_pins_are_read() -> None:
    """Ranges, options and addresses are not pins."""
    text = (
        "a==1.0 # x\nB_c[d]==2 ; python_version > '3'\nd>=1\n-r x\ne==1.* \nf==1 --hash=sha256:x\n"
    )
    assert exact_pins("requirements.txt", text) == [("a", "1.0"), ("b-c", "2"), ("f", "1")]
    project = "[project]\ndependencies = ['x==3', 'y']\n"
    assert exact_pins("pyproject.toml", project) == [("x", "3")]


def test_the_version_that_is_needed_is_the_smallest_without_any_of_them() -> None:
    """Of each vulnerability the first newer fix counts, and of those the largest."""
    report = (
        '{"dependencies": [{"name": "jinja2", "version": "2.4", "vulns": ['
        '{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.3", "2.10", "2.7"]},'
        '{"id": "PYSEC-2", "fix_versions": ["2.9.4"]}, {"id": "PYSEC-3", "fix_versions": []}]},'
        '{"name": "fine", "version": "1", "vulns": []}, {"name": "skipped", "skip_reason": "x"}]}'
    )
    assert needed_versions(report) == [
        Vulnerable("jinja2", "2.9.4", ("PYSEC-1", "CVE-1", "PYSEC-2", "PYSEC-3"))
    ]
    with pytest.raises(Rejected):
        needed_versions("nothing")
