"""What the routes that give commands work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from towline.commands.service import Bridge
from towline.pulls.access import PullRoutes


@dataclass(frozen=True)
class CommandRoutes(PullRoutes):
    """What it takes to give a command for a pull request."""

    orders: Bridge


def commands_of(request: Request) -> CommandRoutes:
    tow: CommandRoutes = request.app.state.tow
    return tow


TheCommands = Annotated[CommandRoutes, Depends(commands_of)]
