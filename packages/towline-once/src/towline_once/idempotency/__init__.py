"""Idempotency records: `state` decides, `ledger` reads and writes, `service` is what callers use.

`memory`, `sql` and `redis` are the stores.
"""
