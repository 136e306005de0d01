"""The commands room carries out commands of people, from comments, the API and the dashboard.

`service` queues them and runs them; begin there. A remedy goes on to `remediation`.
"""
