"""Durable ingest of signed webhooks over HTTP: the servers, and the load that they are put under."""
