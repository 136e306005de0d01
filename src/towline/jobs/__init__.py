"""The jobs room keeps the queue and runs it.

`store` holds the jobs in SQL, `runner` runs one, `embedded` and `celery` are the two engines that
wake it.
"""
