"""Machines for a test, or a reason why there are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.hosts.network import Network, NoNamespaces
from tests.hosts.scene import HOSTS


@pytest.fixture
def network() -> Iterator[Network]:
    """They are gone after the test, whatever became of it."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Network(*HOSTS))
        except NoNamespaces as why:
            pytest.skip(f"machines cannot be made of namespaces here: {why}")
        yield made
