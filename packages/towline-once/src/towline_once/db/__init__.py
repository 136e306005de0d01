"""SQLite, PostgreSQL and Redis, as the stores use them.

`statement` holds one SQL text for both databases, `batching` lets concurrent calls share a round
trip.
"""
