"""What the scale costs: starting, rows in the tables, and the memory of a server that stays."""
