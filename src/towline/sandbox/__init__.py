"""Where programs run that nobody vouches for."""
