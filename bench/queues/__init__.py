"""Job queues: how each is fed and worked, and one procedure that measures them all."""
