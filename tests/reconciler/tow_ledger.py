"""What really arrived at the simulated world: the ledger that the simulation has."""

from __future__ import annotations

from towline_sim.proof.scenarios.tow_world import Key, Ledger

__all__ = ["Key", "Ledger"]
