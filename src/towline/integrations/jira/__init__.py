"""Jira as a sender of webhooks, and as a source that is polled."""
