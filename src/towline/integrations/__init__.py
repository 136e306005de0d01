"""The integrations room speaks with what is no forge: CI systems, Jira, Slack and notifiers."""
