"""Style that can be checked is checked here, over every file that git would commit."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VAGUE_NAMES = {"utils", "helpers", "common", "manager"}
SKIPPED_FOLDERS = {
    *(".git", ".venv", ".venv-lowest", ".venv-newest"),
    *("build", "dist", "site", "node_modules", "__pycache__"),
}
IMPURE_MODULES = {
    *("asyncio", "concurrent", "logging", "multiprocessing", "os", "random", "secrets"),
    *("select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess"),
    *("tempfile", "threading", "time"),
}
CLOCKS_AND_DICE = {
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"),
}

# Each pattern is written so that it does not match its own source.
REGISTRY_HOST = re.compile(
    r"\bpyp[i][.]org|\bpython[h]osted[.]org|\bnpmj[s][.]org|\byarnpkg[.]com|\banaconda[.]org|\bcrates[.]io"
    r"|index-url[= ]+https?:",
    re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(?<![\w.:/*}])/(?:work|home|Users|root)/\w")
UNFINISHED = re.compile(
    r"\b(?:TODO|FIXME|XXX|raise NotImplementedError)\b"
    r"|\bplaceholder (?:code|implementation|value)\b"
)


@functools.cache
def tree() -> tuple[Path, ...]:
    """Tracked and not ignored files; without git, everything outside of build folders."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        found = [
            path
            for path in ROOT.rglob("*")
            if not SKIPPED_FOLDERS & set(path.parts[len(ROOT.parts) :])
        ]
    return tuple(sorted(path for path in set(found) if path.is_file() and not path.is_symlink()))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def texts(*folders: str) -> Iterator[tuple[str, str]]:
    """Name and text of every text file, below these folders or anywhere."""
    for path in tree():
        name = name_of(path)
        if not folders or name.startswith(tuple(f"{folder}/" for folder in folders)):
            raw = path.read_bytes()
            if b"\0" not in raw:
                yield name, raw.decode("utf-8", errors="replace")


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    return ((name, text) for name, text in texts(*folders) if name.endswith(".py"))


def nodes(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for name, text in sources(*folders):
        for node in ast.walk(ast.parse(text, filename=name)):
            yield name, node


def lines_matching(pattern: re.Pattern[str], *folders: str) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts(*folders)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def none_of(offenders: list[str], rule: str) -> None:
    assert not offenders, f"{rule}\n  " + "\n  ".join(offenders)


def imported(node: ast.AST) -> list[str]:
    """The dotted names that an import statement brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        return [node.module]
    return []


def test_modules_are_named_for_their_subject() -> None:
    """A module that could be called anything ends up holding everything."""
    offenders = [
        name
        for name, _ in sources("src", "packages", "tests", "bench", "examples")
        if VAGUE_NAMES & {part.removesuffix(".py") for part in name.split("/")}
    ]
    none_of(offenders, f"No module is called {', '.join(sorted(VAGUE_NAMES))}; rename these:")


def test_no_registry_host_is_named() -> None:
    """Where packages come from is the installer's configuration, not ours."""
    none_of(lines_matching(REGISTRY_HOST), "These lines name a package registry's host:")


def test_no_path_of_a_developers_machine() -> None:
    """Nothing depends on where a checkout happens to lie."""
    none_of(lines_matching(MACHINE_PATH), "These lines hold an absolute path of one machine:")


def test_every_test_says_what_it_shows() -> None:
    """The docstrings of the tests read as a list of what holds."""
    offenders = []
    for name, node in nodes("tests"):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            said = ast.get_docstring(node)
            if not said:
                offenders.append(f"{name}:{node.lineno}: {node.name} has no docstring")
            elif len(said.splitlines()) > 1:
                offenders.append(f"{name}:{node.lineno}: {node.name} says it in more than one line")
    none_of(offenders, "Every test has a docstring of one line:")


def impurity(node: ast.AST) -> str | None:
    """What makes this syntax unfit for a pure module, if anything."""
    if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
        return "is asynchronous"
    for module in imported(node):
        top = module.partition(".")[0]
        if top in IMPURE_MODULES:
            return f"imports {module}"
    if isinstance(node, ast.Attribute):
        used = ".".join(ast.unparse(node).split(".")[-2:])
        if used in CLOCKS_AND_DICE:
            return f"uses {used}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        called = node.func.id
        return f"calls {called}()" if called in {"open", "print", "input"} else None
    return None


def pure_modules() -> tuple[str, ...]:
    """The files of the modules that the import contract lists as pure."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (listed,) = (one["source_modules"] for one in contracts if one["name"].startswith("Pure"))
    return tuple(f"/{module.replace('.', '/')}.py" for module in listed)


def test_pure_modules_are_pure() -> None:
    """Pure functions take the time and return what to do; they touch nothing."""
    pure = pure_modules()
    offenders = [
        f"{name}:{getattr(node, 'lineno', 0)}: {reason}"
        for name, node in nodes("src", "packages")
        if name.endswith(pure) and (reason := impurity(node))
    ]
    none_of(offenders, "These modules are listed as pure; move this to one that acts:")


def test_nothing_is_left_unfinished() -> None:
    """What is in src works; what does not work is not in src."""
    none_of(lines_matching(UNFINISHED, "src", "packages"), "Finish these, or take them out:")


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in {"os.environ", "os.environb", "os.getenv", "os.putenv"}
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and any(alias.name in {"environ", "environb", "getenv"} for alias in node.names)
    )


def test_only_settings_reads_the_environment() -> None:
    """Every setting passes through one place that can explain it."""
    offenders = [
        f"{name}:{getattr(node, 'lineno', 0)}"
        for name, node in nodes("src", "packages")
        if name != "src/towline/config/__init__.py" and reads_environment(node)
    ]
    none_of(offenders, "Take these from `towline.config`:")


def test_changelogs_have_a_heading() -> None:
    """A changelog says to which version a change belongs."""
    heading = re.compile(r"^## \[?(?:Unreleased|\d+\.\d+\.\d+)", re.MULTILINE)
    changelogs = [(name, text) for name, text in texts() if Path(name).stem == "CHANGELOG"]
    assert changelogs, "CHANGELOG.md is missing"
    offenders = [name for name, text in changelogs if not heading.search(text)]
    none_of(offenders, "These have neither an Unreleased nor a version heading:")


def test_the_patterns_catch_what_they_are_for() -> None:
    """A rule that matches nothing would pass for ever."""
    slash, dot, host, i = "/", ".", "host", "i"
    assert MACHINE_PATH.search(f"{slash}work/main")
    assert MACHINE_PATH.search(f'open("{slash}home/x")')
    assert not any(map(MACHINE_PATH.search, ["src/work/x", "https://a.example/home/x", "/tmp/x"]))
    assert REGISTRY_HOST.search(f"https://pyp{i}{dot}org/simple")
    assert REGISTRY_HOST.search(f"files.python{host}ed{dot}org")
    assert all(map(UNFINISHED.search, ["# TODO: later", "raise NotImplementedError"]))


def test_impurity_is_recognised() -> None:
    """Each kind of impure syntax is named, and pure syntax is not."""
    impure = [
        "import time",
        "from os import path",
        "datetime.now(UTC)",
        "open(name)",
        "uuid.uuid4()",
    ]
    for code in impure:
        assert any(map(impurity, ast.walk(ast.parse(code)))), code
    for code in ["import hashlib", "from datetime import datetime", "clock.now", "uuid.UUID(text)"]:
        assert not any(map(impurity, ast.walk(ast.parse(code)))), code
