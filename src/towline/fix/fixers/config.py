"""What fixers are told when they are built; secrets are never part of a `repr`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from towline.fix.model import Command

Provider: TypeAlias = Literal["anthropic", "openai"]

PIP_AUDIT: Final = Command(
    name="pip-audit",
    argv=(
        *(sys.executable, "-I", "-m", "pip_audit", "--requirement", "requirements.txt"),
        *("--no-deps", "--disable-pip", "--progress-spinner", "off"),
        *("--format", "json", "--output", "audit.json"),
    ),
    seconds=120.0,
)
"""Looks pinned versions up, and installs nothing."""


RUFF: Final = Command(name="ruff", argv=("ruff",), seconds=120.0)
"""Its limits; the program is the one that is installed beside Towline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The coding agent or script behind `command`, with all of its environment."""

    command: Command
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmConfig:
    """The model behind `llm`. No host is asked but the one of `url`."""

    model: str
    provider: Provider = "anthropic"
    url: str | None = None
    """The root of its API; None: the provider's own."""
    api_key: str = field(default="", repr=False)
    max_tokens: int = 8192
    seconds: float = 300.0
    most_prompt_chars: int = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FixerConfig:
    agent: AgentConfig | None = None
    llm: LlmConfig | None = None
    ruff: Command = RUFF
    audit: Command = PIP_AUDIT
    """Needs a network, which it has if the settings give it one."""
    more: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    """Settings of other fixers, by their names."""
