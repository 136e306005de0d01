"""What the routes that look at deliveries and jobs work with."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Request

from towline.http.auth import Keyring
from towline.http.readiness import Readiness
from towline.inbox.lost_deliveries import HookHours
from towline.inbox.store import Inbox
from towline.jobs.model import Bell
from towline.jobs.store import JobStore
from towline_once.metrics import Audit
from towline_once.ports import Clock


class Control(NamedTuple):
    """The collaborators of one app."""

    inbox: Inbox
    jobs: JobStore
    keyring: Keyring
    clock: Clock
    audit: Audit
    cooldown_us: int
    ready: Readiness
    bell: Bell
    hours: HookHours


def control_of(request: Request) -> Control:
    control: Control = request.app.state.control
    return control


TheControl = Annotated[Control, Depends(control_of)]
