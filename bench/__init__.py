"""Towline beside the raw drivers and beside its peers, in one run: `python -m bench --help`."""
