"""The files of `deploy/`, read."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from scripts.reference import every_command, spelled
from scripts.reference_settings import every_setting
from towline.config import Settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DATA_PORT = 8788
CONTROL_PORT = 8789


def documents(name: str) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return [one for one in yaml.safe_load_all(text_of(name)) if one is not None]


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def manifests() -> list[dict[str, Any]]:
    """Everything that the kustomization names, in its order."""
    (kustomization,) = documents("kubernetes/kustomization.yaml")
    return [one for name in kustomization["resources"] for one in documents(f"kubernetes/{name}")]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in manifests() if one["kind"] == kind}


def is_a_setting(variable: str) -> bool:
    """Whether a variable of the environment is a setting, whatever its own part is called."""
    return _variables().fullmatch(variable) is not None


@functools.cache
def _variables() -> re.Pattern[str]:
    named = {setting.variable for setting in every_setting(Settings) if setting.variable}
    return re.compile("|".join(name.replace("NAME", "[A-Z0-9_]+?") for name in sorted(named)))


def complaint_about(words: list[str]) -> str | None:
    """What is wrong with the words after `towline`; nothing, if that command has those options."""
    commands = {tuple(path.split()[1:]): command for path, command in every_command()}
    for length in (2, 1):
        command = commands.get(tuple(words[:length]))
        if command is not None:
            known = {name for param in command.params for name in spelled(param).split(", ")}
            flags = {name.split()[0] for name in known if name.startswith("-")}
            given = {word.split("=")[0] for word in words[length:] if word.startswith("-")}
            unknown = given - flags - {"-h", "--help"}
            return f"{words} has no {sorted(unknown)}" if unknown else None
    return f"there is no towline {' '.join(words[:2])}"
