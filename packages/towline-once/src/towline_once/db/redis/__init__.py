"""Redis, over redis-py. Begin at `client`."""
