"""git, run over repositories that nobody vouches for."""
