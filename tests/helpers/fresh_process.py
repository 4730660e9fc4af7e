"""Programs with loops, lowered and compiled by a process that is told where the cache is.

    python -m tests.helpers.fresh_process FOLDER

Prints as JSON what the persistent compilation cache was asked for and the text of each module.
"""

import collections
import json
import sys

import jax
import jax.numpy as jnp

import loops

INIT = jnp.float32([0.3, 0.6])
ROWS = jnp.linspace(0.5, 1.5, 6, dtype=jnp.float32).reshape(3, 2)
EVENTS = {
    "/jax/compilation_cache/cache_hits": "hits",
    "/jax/compilation_cache/cache_misses": "misses",
}


def scan(c, xs):
    """A loop with residuals, two constants and two ys."""
    low, high = xs.min(), xs.max()
    return loops.scan(lambda c, x: (jnp.sin(c) * x + low, (c * high, x * low)), c, xs)


def nested(c, xs):
    """Loops of both kinds in one another, in several lanes."""

    def run(c):
        inner = lambda i, d: loops.while_loop(lambda d: d.sum() < 5, lambda d: 2 * d + 1, d * xs[i])
        return loops.fori_loop(0, 3, inner, c)

    return jax.vmap(run)(jnp.stack([c, c + 1]))


def loss(c, xs):
    """A scalar through a checkpointed scan of tuples."""
    step = lambda c, x: ((jnp.sin(c[0]) * x, c[1] + c[0]), {"b": c[1], "a": x * c[0]})
    (a, b), ys = loops.scan(jax.checkpoint(step), (c, c), xs)
    return (a * b).sum() + sum((leaf * leaf).sum() for leaf in jax.tree.leaves(ys))


PROGRAMS = {
    "scan": scan,
    "nested": nested,
    "gradient": jax.grad(loss, (0, 1)),
    "hessian": jax.hessian(loss),
    "fresh lambda": lambda c, xs: loops.map(lambda x: x * c, xs),
}


def main(folder: str) -> None:
    """Lower, compile and run each program, and one loop without jit."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    counts = collections.Counter()
    jax.monitoring.register_event_listener(
        lambda event, **_: counts.update([EVENTS[event]] if event in EVENTS else [])
    )
    modules = {}
    for name, program in PROGRAMS.items():
        lowered = jax.jit(program).lower(INIT, ROWS)
        modules[name] = lowered.as_text(debug_info=True)
        lowered.compile()
    loops.scan(lambda c, x: (c * x, c), INIT, ROWS)
    report = {"hits": counts["hits"], "misses": counts["misses"], "modules": modules}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
