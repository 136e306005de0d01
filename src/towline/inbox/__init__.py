"""The inbox room takes deliveries in and hands their events on, each once.

`http` receives, `ingest` stores a delivery with its job, `dispatch` runs that job. `poll` and
`lost_deliveries` bring in what no webhook brought.
"""
