"""What really arrived at the simulated world: the ledger that the simulation has."""

from __future__ import annotations

from towline.proof.scenes.tow_ledger import Key, Ledger

__all__ = ["Key", "Ledger"]
