"""The web of a running service: its two planes, put together from what the service has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towline.app.control_plane import create_control_app
from towline.app.data_plane_docs import FRAGMENT
from towline.app.gateway import PROBES, Gateway, ProbesOnly
from towline.dashboard.collaborators import Desk
from towline.dashboard.queries import SqlInsights
from towline.fix.http import Runs
from towline.http.json_body import MOST_BYTES
from towline.http.openapi import document_of
from towline.inbox.lost_deliveries import HookHours
from towline.reconciler.access import Tow
from towline.submit.http import Mesh, is_of_workers
from towline_once.asgi.messages import App

if TYPE_CHECKING:
    from towline.app.service import Service
    from towline.dashboard.collaborators import Strip


def apps_of(service: Service, strip: Strip | None = None) -> tuple[App, App]:
    """The data plane and the control plane; one app for both where they share an address.

    A demo brings the `strip` that its pages show.
    """
    settings, tow, database = service.settings, service.tow, service.database
    alone = settings.serve.control_port is not None
    mesh = Mesh(service.submit, service.keyring, max_body_bytes=settings.mesh.max_body_bytes)
    control = create_control_app(
        inbox=service.inbox,
        jobs=service.jobs,
        keyring=service.keyring,
        clock=service.clock,
        audit=service.audit,
        cooldown_us=int(settings.pipeline.cooldown_seconds * 1e6),
        ready=service.ready,
        measure=service.submit.measure,
        bell=service.bell,
        hours=HookHours(database),
        beside={} if alone else FRAGMENT,
        tow=Tow(tow.pulls, tow.policy, tow.bridge, tow.reconciler, tow.board),
        runs=Runs(service.fix.store, settings.pipeline.max_attempts),
        desk=Desk(
            SqlInsights(database),
            service.sessions,
            None,
            settings.audit.file,
            tow.outside.forges,
            service.farewell,
            strip,
            service.fix.troubles,
        ),
    )
    writes = service.writes
    work = writes.around(mesh, is_of_workers, settings.mesh.max_body_bytes)
    control.add_middleware(writes.around, routes="/api/*", max_body_bytes=MOST_BYTES)
    if not alone:
        return Gateway(service.hooks, work, control), control
    probes = ProbesOnly(control, document_of(control, PROBES, FRAGMENT))
    return Gateway(service.hooks, work, probes), control
