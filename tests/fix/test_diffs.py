"""What git writes is read back, byte for byte, and anything else is refused."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fix.workshop import Tree, git
from tests.sizes import size
from towline.fix.diff import FileChange, Line, before, parse_diff
from towline_once.errors import Rejected

NASTY_NAMES = [
    "plain.py",
    "with space.txt",
    " b/half a/half",
    "a b/x b",
    'quo"te',
    "back\\slash",
    "tab\there",
    "new\nline",
    "tä.txt",
    "tä b.txt",
    "-dash",
    "trailing ",
    "\x01\x7f",
]

SAMPLE = b"""\
diff --git a/x.py b/x.py
index 1111111..2222222 100644
--- a/x.py
+++ b/x.py
@@ -1,3 +1,3 @@ def f():
 one
-two
+2
 three
"""


def only(diff: bytes) -> FileChange:
    (change,) = parse_diff(diff)
    return change


def test_lines_have_the_numbers_of_their_own_version() -> None:
    """An added line is numbered in the new file, a removed one in the old."""
    change = only(SAMPLE)
    assert (change.added, change.removed) == ((Line(2, "2"),), (Line(2, "two"),))
    assert (change.old_path, change.new_path) == ("x.py", "x.py")
    assert change.modes == {"100644"}


def test_lines_that_look_like_headers_are_content(tmp_path: Path) -> None:
    """The counts of a hunk decide what is content, not what it looks like."""
    text = "-- a/y\n++ b/y\n@@ -1 +1 @@\ndiff --git a/y b/y\n\\ No newline at end of file\n"
    tree = Tree(tmp_path, {"x": "old\n"})
    tree.write({"x": text})
    change = only(tree.changes())
    assert [line.text for line in change.added] == text.splitlines()
    assert change.paths == ("x",)


def test_names_survive_git_s_quoting(tmp_path: Path) -> None:
    """Any name that a file can have is read as it is, made, changed or deleted."""
    names = [os.fsencode(name) for name in NASTY_NAMES] + [b"not\xff\xfeutf8"]
    tree = Tree(tmp_path, {"keep": "x\n"})
    for place, name in enumerate(names):
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{place} and some text of its own\n" if place % 2 else "")
    expected = {name.decode("utf-8", "surrogateescape") for name in names}
    made = parse_diff(tree.changes())
    assert {change.new_path for change in made if change.created} == expected
    git(tmp_path, "commit", "-q", "-m", "second")
    gone = parse_diff(git(tmp_path, "diff", "--binary", "--no-renames", "HEAD", tree.base_sha))
    assert {change.old_path for change in gone if change.deleted} == expected


def test_modes_are_told(tmp_path: Path) -> None:
    """Links and executables show by their modes, also where only the mode changes."""
    tree = Tree(tmp_path, {"run.sh": "x\n", "both.sh": "x\n", "link": "x\n"})
    (tmp_path / "run.sh").chmod(0o755)
    tree.write({"both.sh": "y\n"})
    (tmp_path / "both.sh").chmod(0o755)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/etc/passwd")
    changes = parse_diff(tree.changes())
    found = {change.path: change for change in changes}
    for name in ("run.sh", "both.sh"):
        assert (found[name].old_mode, found[name].new_mode) == ("100644", "100755")
    links = [change.modes for change in changes if change.path == "link"]
    assert links == [{"100644"}, {"120000"}]


def test_renames_and_copies_are_refused(tmp_path: Path) -> None:
    """git is asked for none; a patch with one is not of our making."""
    text = "".join(f"line {number}\n" for number in range(30))
    tree = Tree(tmp_path, {"old name.txt": text, "copied.txt": text * 2})
    (tmp_path / "old name.txt").rename(tmp_path / "new name.txt")
    with pytest.raises(Rejected):
        parse_diff(tree.changes("-M"))
    (tmp_path / "new name.txt").rename(tmp_path / "old name.txt")
    tree.write({"copied.txt": text * 2 + "end\n", "copy of.txt": text * 2})
    with pytest.raises(Rejected):
        parse_diff(tree.changes("-M", "-C"))


def test_binaries_and_submodules_are_told(tmp_path: Path) -> None:
    """Neither has lines to look at, and both say what they are."""
    tree = Tree(tmp_path / "outer", {"image": b"\0\1\2", "text": "x\n"})
    Tree(tmp_path / "outer" / "inner", {"y": "y\n"})
    tree.write({"image": os.urandom(5000), "text": b"\0now binary"})
    found = {change.path: change for change in parse_diff(tree.changes())}
    assert found["image"].binary
    assert found["text"].binary
    assert found["inner"].modes == {"160000"}
    short = parse_diff(git(tmp_path / "outer", "diff", "--cached", tree.base_sha))
    assert {change.path for change in short if change.binary} == {"image", "text"}


LINE = st.sampled_from(
    [b"a", b"b", b"", b"-- x", b"+", b"\\ x", b"\r", b"\xff\x00"[:1], b"@@ -1 +1 @@"]
)
CONTENT = st.builds(
    lambda lines, end: b"\n".join(lines) + end,
    st.lists(LINE, max_size=12),
    st.sampled_from([b"", b"\n"]),
)


@settings(max_examples=size(10, 200), deadline=None)
@given(old=CONTENT, new=CONTENT, context=st.sampled_from(["-U0", "-U3"]))
def test_the_old_version_follows_from_the_new_one(old: bytes, new: bytes, context: str) -> None:
    """Diff and new file together give the old file, whatever is in them."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), {"x": old})
        tree.write({"x": new})
        diff = tree.changes(context)
        if old == new:
            assert parse_diff(diff) == ()
        else:
            assert before(only(diff), new) == old


def test_another_new_version_is_refused() -> None:
    """The old version is not guessed from a file that the diff does not lead to."""
    assert before(only(SAMPLE), b"one\n2\nthree\n") == b"one\ntwo\nthree\n"
    with pytest.raises(Rejected):
        before(only(SAMPLE), b"one\n3\nthree\n")


@settings(max_examples=size(60, 1_500), deadline=None)
@given(noise=st.binary(max_size=200))
@example(b"diff --git ")
@example(b'diff --git "a/x" "b/x')
@example(b"\n")
def test_any_bytes_give_a_result_or_a_refusal(noise: bytes) -> None:
    """Nothing else is ever raised."""
    for text in (noise, b"diff --git " + noise, SAMPLE + noise, noise + b"\n"):
        with contextlib.suppress(Rejected):
            parse_diff(text)


@settings(max_examples=size(80, 2_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_diff_is_read_or_refused(data: st.DataObject) -> None:
    """Bytes put in, taken out or swapped within a real diff raise nothing else."""
    text = bytearray(SAMPLE * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        end = place + data.draw(st.integers(0, 8))
        text[place:end] = data.draw(
            st.sampled_from([b"", b"\n", b'"', b" ", b"-", b"+", b"\\ ", b"9"])
        )
    with contextlib.suppress(Rejected):
        parse_diff(bytes(text))


@pytest.mark.parametrize(
    ("change", "to"),
    [
        (b"+++ b/x.py", b"+++ b/y.py"),
        (b"--- a/x.py", b"--- a/y.py"),
        (b"diff --git a/x.py b/x.py", b"diff --git a/y.py b/y.py"),
        (b"--- a/x.py", b"--- /dev/null"),
        (b"index 1111111..2222222 100644", b"new file mode 100644"),
        (b"index 1111111..2222222 100644", b"rename from x.py\nrename to z.py"),
        (b"index 1111111..2222222 100644", b"index 1111111..2222222"),
        (b"index 1111111..2222222 100644", b"old mode 100644"),
        (b"index", b"old mode 100644\nnew mode 120000\nindex"),
        (b"index", b"new file mode 100644\ndeleted file mode 100644\nindex"),
        (b"diff --git a/x.py b/x.py", b"diff --git a/x.py  b/x.py"),
        (b"@@ -1,3 +1,3 @@", b"@@ -1,3 +1,2 @@"),
        (b"@@ -1,3 +1,3 @@", b"@@ -1,4 +1,4 @@"),
        (b" three\n", b" three"),
    ],
)
def test_a_diff_that_contradicts_itself_is_refused(change: bytes, to: bytes) -> None:
    """No name, count or kind is believed that another line denies."""
    assert change in SAMPLE
    with pytest.raises(Rejected):
        parse_diff(SAMPLE.replace(change, to, 1))
