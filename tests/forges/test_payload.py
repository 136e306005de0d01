"""Reading: what a field may hold, and that everything else reads as nothing."""

from __future__ import annotations

from typing import Any

import pytest

from towline.forges import payload


def nothing(*values: Any) -> list[tuple[Any, Any]]:
    """Cases of values that read as nothing."""
    return [(value, None) for value in values]


@pytest.mark.parametrize(
    ("address", "repo"),
    [
        ("https://github.com/o/n", "o/n"),
        ("https://github.com/o/n.git", "o/n"),
        ("https://user:pass@host:8443/o/n.git/", "o/n"),
        ("git@github.com:o/n.git", "o/n"),
        ("ssh://git@host:22/group/sub/n.git", "group/sub/n"),
        ("git@host:group/sub/n.name.git", "group/sub/n.name"),
        *[
            (wrong, None)
            for wrong in ("", "o/n", "https://host", "https://host/n", "http://[", "x:y")
        ],
        *nothing("https://h/o/../n", "https://h/o/n o", None, 1, ["o/n"]),
        ("https://h/o/" + "n" * 3000, None),
    ],
)
def test_repositories_in_urls(address: Any, repo: str | None) -> None:
    """The path of a page or a clone, or nothing if there is none that could be a repository."""
    assert payload.repo_of_url(address) == repo


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000),
        ("2023-11-14 22:13:20 UTC", 1_700_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000),
        ("2023-11-14T22:13:20.500Z", 1_700_000_000.5),
        (1_700_000_000, 1_700_000_000),
        (1_700_000_000.5, 1_700_000_000.5),
        *nothing("", "soon", None, True, -1, 10**300, [], "0000-00-00"),
    ],
)
def test_moments(value: Any, seconds: float | None) -> None:
    """Each way in which senders write a time; one without a zone is in UTC."""
    assert payload.moment({"at": value}, "at") == seconds


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ("7", 7),
        (2**53 - 1, 2**53 - 1),
        *nothing(0, -1, 2**53, 7.0, True, "", "-7", "７", "9" * 16, None, [7]),
    ],
)
def test_numbers(value: Any, number: int | None) -> None:
    """Whole numbers above zero that every store can hold, also in digits."""
    assert payload.number({"n": value}, "n") == number


@pytest.mark.parametrize(
    ("value", "known_as"),
    [(7, "7"), ("a", "a"), (0, "0"), *nothing(10**300, "", "a\0", "x" * 256, True, 1.5, None, {})],
)
def test_ids(value: Any, known_as: str | None) -> None:
    """Numbers or text, neither without end."""
    assert payload.ident({"id": value}, "id") == known_as


@pytest.mark.parametrize(
    ("value", "sha"),
    [
        ("A" * 40, "a" * 40),
        ("b" * 64, "b" * 64),
        ("abcdef0", "abcdef0"),
        *nothing("0" * 40, "abc", "g" * 40, "a" * 65, "a" * 40 + "\n", None, 1),
    ],
)
def test_commits(value: Any, sha: str | None) -> None:
    """Hexadecimal, of either length or cut short; zeros stand for no commit."""
    assert payload.commit({"sha": value}, "sha") == sha


def test_prose_is_cut_and_names_are_not() -> None:
    """Half a comment still says something, half a branch's name is another branch."""
    node: payload.Object = {"a": "x\0" * 5000}
    assert payload.prose(node, "a", 10) == "xxxxx"
    assert payload.text({"a": "x" * 1025}, "a") is None
    assert payload.texts({"a": ["x", 1, "", "y" * 2000, None, "z"]}, "a") == ("x", "z")
    assert payload.objects({"a": [{"b": 1}, 1, {"b": 2}]}, "a", most=2) == [{"b": 1}]
