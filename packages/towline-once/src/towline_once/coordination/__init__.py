"""Locks, dedup, rate limits, slots and circuit breakers, over memory, SQL and Redis.

Each primitive is one module; `memory`, `sql` and `redis` store all of them.
"""
