"""The one registry of fuzz targets: places where Towline reads what others wrote.

Both engines, Hypothesis in the gate and atheris in `make fuzz`, play these and nothing else. The
page docs/explanation/fuzzing.md lists them, and what has no target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.fuzz import (
    targets_answers,
    targets_edges,
    targets_forges,
    targets_kept,
    targets_patches,
    targets_programs,
    targets_redis,
    targets_sources,
    targets_stored,
    targets_texts,
    targets_web,
)
from tests.fuzz.target import Target

_ALL: Final = (
    *targets_sources.TARGETS,
    *targets_texts.TARGETS,
    *targets_patches.TARGETS,
    *targets_forges.TARGETS,
    *targets_answers.TARGETS,
    *targets_web.TARGETS,
    *targets_edges.TARGETS,
    *targets_stored.TARGETS,
    *targets_kept.TARGETS,
    *targets_redis.TARGETS,
    *targets_programs.TARGETS,
)
TARGETS: Final[Mapping[str, Target]] = {target.name: target for target in _ALL}
assert len(TARGETS) == len(_ALL), "two targets share a name"
