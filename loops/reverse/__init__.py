"""Which carries of a loop to keep for its backward pass, and when to recompute the others.

Plain Python about step numbers: nothing here runs a loop or knows JAX.
"""
