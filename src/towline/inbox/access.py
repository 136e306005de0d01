"""What the routes that look at deliveries and jobs work with."""

from __future__ import annotations
from typing import Annotated
from typing import NamedTuple
from fastapi import Depends
from fastapi import Request
from towline_once.ports import Clock
from towline.forges.delivery_log import HookHours
from towline.inbox.model import Inbox
from towline.jobs.model import Bell
from towline.jobs.model import JobStore
from towline_once.metrics import Audit
from towline.http.auth import Keyring
from towline.http.readiness import Readiness

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
