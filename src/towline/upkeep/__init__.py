"""The upkeep room runs periodic tasks.

The reaper takes jobs back from dead workers, retention deletes expired rows.
"""
