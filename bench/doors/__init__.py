"""Durable ingest of signed webhooks over HTTP: the servers, and the load on them."""
