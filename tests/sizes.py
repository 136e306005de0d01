"""How much a test tries: a part of it in `make test`, all of it in `make proof`.

`TOWLINE_TEST_FULL=1` asks for the full size. A test whose size is taken from here has the mark
`full_size`, so that `make proof` finds it; tests of hypothesis have a mark of their own already.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

FULL: Final = os.environ.get("TOWLINE_TEST_FULL") == "1"
_EXAMPLES_IN_THE_GATE: Final = 30
_EXAMPLES_IN_FULL: Final = 300


def size(gate: int, full: int) -> int:
    """The first number in `make test`, the second one in `make proof`."""
    return full if FULL else gate


def load_hypothesis_profile() -> None:
    """Set how many examples a test of hypothesis has that does not say so itself."""
    settings.register_profile("gate", max_examples=_EXAMPLES_IN_THE_GATE)
    settings.register_profile("full", max_examples=_EXAMPLES_IN_FULL, print_blob=True)
    settings.load_profile("full" if FULL else "gate")
