"""The whole of Towline on a virtual clock in one thread, from a seed, with everything going wrong.

A *scene* plays a part of the product with several simulated processes (*nodes*) that share a store.
What goes wrong is decided at each call that leaves a node; a seed decides it the same way again.
"""
