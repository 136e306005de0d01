"""GitHub as a forge. Begin at `forge`."""
