"""What our loops cost beside `jax.lax`'s, measured in one process: `python -m tests.benchmarks`."""
