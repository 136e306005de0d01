"""Runs untrusted programs."""
