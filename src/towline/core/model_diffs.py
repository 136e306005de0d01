"""Takes the diff out of what a language model says, and puts the counts of its hunks right."""

from __future__ import annotations

import re

from towline.errors import Rejected

_FENCED = re.compile(r"^```(?:diff|patch)[ \t\r]*+\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@(.*)", re.DOTALL)
_BEGINS = re.compile(r"^(?:diff --git |--- )", re.MULTILINE)


def diff_in(answer: str) -> bytes:
    """`Rejected` if there is none."""
    fenced = _FENCED.findall(answer)
    text = "".join(block if block.endswith("\n") else f"{block}\n" for block in fenced) or answer
    begin = _BEGINS.search(text)
    if begin is None:
        raise Rejected("the answer holds no diff")
    lines = text[begin.start() :].split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return ("\n".join(_recounted(lines)) + "\n").encode("utf-8", "replace")


def _recounted(lines: list[str]) -> list[str]:
    out: list[str] = []
    place = 0
    while place < len(lines):
        match = _HUNK.fullmatch(lines[place])
        if match is None:
            out.append(lines[place])
            place += 1
            continue
        end = _end_of_hunk(lines, place + 1)
        body = [line or " " for line in lines[place + 1 : end]]
        old = sum(line[0] in " -" for line in body)
        new = sum(line[0] in " +" for line in body)
        out += [f"@@ -{match[1]},{old} +{match[2]},{new} @@{match[3]}", *body]
        place = end
    return out


def _end_of_hunk(lines: list[str], place: int) -> int:
    while place < len(lines):
        line = lines[place]
        if line.startswith(("@@ ", "diff --git ")) or (
            line.startswith("--- ")
            and place + 1 < len(lines)
            and lines[place + 1].startswith("+++ ")
        ):
            break
        if line and line[0] not in " +-\\":
            raise Rejected("the answer's diff has lines that belong to no file")
        place += 1
    return place
