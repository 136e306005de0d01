"""The observability room writes the audit log, the log lines and the traces.

Metrics stay in the rooms that count them.
"""
