"""All operations of the REST API that the simulator has."""

from __future__ import annotations

from typing import Final

from towline.sim import (
    rest_actions,
    rest_app,
    rest_checks,
    rest_contents,
    rest_git,
    rest_hooks,
    rest_issues,
    rest_pulls,
    rest_repos,
)
from towline.sim.rest import Routes

ROUTES: Final = Routes(
    (
        *rest_repos.ROUTES,
        *rest_pulls.ROUTES,
        *rest_issues.ROUTES,
        *rest_checks.ROUTES,
        *rest_actions.ROUTES,
        *rest_hooks.ROUTES,
        *rest_app.ROUTES,
        *rest_git.ROUTES,
        *rest_contents.ROUTES,
    )
)
