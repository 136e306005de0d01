"""The submit room takes work from programs and hands it to remote workers.

`http` has the routes, `service` the steps, `rules` the pure decisions.
"""
