"""What the statements of a drawn program compute: expressions by the type of their result.

Every float operation keeps its result small, so that no number of steps makes a difference of
rounding large.
"""

FLOAT, VECTOR, INT, BOOL, KEY, OTHER = "FVIBKX"

# For each type the expressions that give it, with the types of the variables that they take.
OPERATIONS: dict[str, tuple[str, ...]] = {
    FLOAT: (
        "0.5 * ({F} + {F})",
        "0.5 * ({F} - {F})",
        "1.5 * jnp.sin({F})",
        "jnp.tanh({F} * {F})",
        "jnp.maximum({F}, {F})",
        "jnp.where({I} % 2 == 0, {F}, {F})",
        "jnp.where({B}, {F}, {F})",
        "0.2 * jnp.float32({I} % 7)",
        "0.75",
        "{V}[{I} % 3]",
        "jnp.mean({V})",
        "jnp.tanh({V} @ {V})",
        "jax.random.uniform({K})",
        "jax.lax.stop_gradient({F})",
    ),
    VECTOR: (
        "0.5 * ({V} + {V})",
        "jnp.tanh({V} * {V})",
        "{V}.at[{I} % 3].set({F})",
        "0.5 * {V}.at[{I} % 3].add({F})",
        "jnp.broadcast_to(jnp.float32({F}), (3,))",
        "jnp.roll({V}, 1)",
        "jnp.where({V} > 0.123, {V}, {F})",
        "0.3 * jnp.cumsum({V})",
        "jax.random.uniform({K}, (3,))",
        "jnp.stack([jnp.float32({F}), jnp.float32({F}), {V}[0]])",
        "jax.jit(lambda a, b: jnp.cos(a * b))({V}, {F})",
        "jax.checkpoint(lambda a: jnp.sin(jnp.sin(a)))({V})",
    ),
    INT: (
        "{I} + 1",
        "{I} + {I}",
        "{I} * {I}",
        "jnp.where({B}, {I}, {I} - 1)",
        "jnp.argmax({V}).astype(jnp.int32)",
        "jnp.where(jnp.any({V} > 0.123), {I} + 1, {I})",
        "jax.random.randint({K}, (), 0, 3)",
    ),
    BOOL: ("{F} > 0.123", "{I} % 3 == 1", "jnp.logical_not({B})", "jnp.logical_or({B}, {F} < -1)"),
    KEY: ("jax.random.fold_in({K}, 1)", "jax.random.split({K})[0]"),
}

# Literals for a carry of each type: some are weak, and an integer may stand in for a float.
LITERALS = {
    FLOAT: ("jnp.float32(0.5)", "0.25", "1"),
    VECTOR: ("jnp.ones(3)",),
    INT: ("jnp.int32(3)", "0", "2"),
    BOOL: ("True", "jnp.bool_(False)"),
    KEY: ("jax.random.key(3)",),
}

WEAK_LITERALS = {FLOAT: ("0.25", "1"), INT: ("0", "2")}

# What a program with a drift returns for a carry: another type than it took.
DRIFTED = {
    FLOAT: ("jnp.bfloat16({})", "jnp.stack([{}, {}])", "({},)", "jnp.int32({})"),
    VECTOR: ("{}[:2]", "{}.astype(jnp.float16)", "[{}]"),
    INT: ("jnp.float32({})", "jnp.int16({})", "None"),
    BOOL: ("jnp.int32({})",),
    KEY: ("jax.random.split({})", "jax.random.key_data({})"),
}

OPERATION_TYPES = FLOAT * 3 + VECTOR * 2 + INT * 2 + BOOL + KEY
