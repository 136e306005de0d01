"""Looks at an installation from all sides, and changes nothing."""
