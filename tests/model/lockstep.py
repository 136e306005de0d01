"""How the machines that keep all backends in lockstep are run: the same examples each time."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(
    machine: type[RuleBasedStateMachine], fleet: Any, examples: int, steps: int
) -> None:
    """On this fleet, which all examples share: to open the stores takes longer than an example."""
    on_the_fleet = type(machine.__name__, (machine,), {"fleet": fleet})
    run_state_machine_as_test(
        on_the_fleet,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
