"""How everything in the world looks in the REST API, as GitHub describes it with OpenAPI."""

from __future__ import annotations

from towline.sim.rest_shapes_checks import CheckShapes
from towline.sim.rest_shapes_git import GitShapes


class Shapes(CheckShapes, GitShapes):
    """One for each answer: what it has shown once, it keeps."""
