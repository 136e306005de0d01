"""All operations of the REST API that the simulator has."""

from __future__ import annotations

from typing import Final

from towline_sim.github.rest import (
    actions,
    apps,
    checks,
    contents,
    git,
    hooks,
    issues,
    pulls,
    repos,
)
from towline_sim.github.rest.calls import Routes

ROUTES: Final = Routes(
    (
        *repos.ROUTES,
        *pulls.ROUTES,
        *issues.ROUTES,
        *checks.ROUTES,
        *actions.ROUTES,
        *hooks.ROUTES,
        *apps.ROUTES,
        *git.ROUTES,
        *contents.ROUTES,
    )
)
