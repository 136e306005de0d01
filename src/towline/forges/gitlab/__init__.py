"""GitLab as a forge. Begin at `forge`."""
