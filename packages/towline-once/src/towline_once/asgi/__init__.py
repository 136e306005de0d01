"""`Idempotency-Key` for ASGI apps. Begin at `middleware`."""
