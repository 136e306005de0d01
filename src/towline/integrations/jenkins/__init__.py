"""Jenkins as a CI system and as a sender of webhooks."""
