"""Runs git over repositories that are not trusted."""
