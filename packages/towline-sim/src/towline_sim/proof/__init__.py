"""The whole of Towline on a virtual clock in one thread, from a seed, with everything going wrong.

A *scene* plays a part of the product with several simulated processes (*nodes*) that share a store.
What goes wrong is decided at each call that leaves a node; a seed decides it the same way again.

`towline simulate` and the tests use it. `run_seed` plays one seed, `sweep` many; `scenarios` are
what is played, `invariants` what must be true after each commit. `loop` is the virtual time,
`fault_schedule` says what goes wrong and `wire` is where it does; `store` and `services` are what
nodes reach, `harness` and `bodies` hold a play together. `mutations` and `planted_bugs` are rows
that break the product, and `gate` plays each to see that it is noticed.
"""
