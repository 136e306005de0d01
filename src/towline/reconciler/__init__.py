"""The reconciler room finds what is stuck and decides what to do. It acts through `remediation`.

`sweep` goes over the stale pull requests, `rules` has the eleven rules.
"""
