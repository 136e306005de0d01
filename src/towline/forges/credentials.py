"""What is said, and in which words, where there are no credentials for a forge."""

from __future__ import annotations

from towline.forges.registry import FORGES, title_of


def no_credentials(forge: str) -> str:
    """For a person: what is missing, and which setting it goes into."""
    setting = FORGES[forge].credentials if forge in FORGES else f"{forge}.token"
    return f"there is no token for {title_of(forge)}; set {setting}"
