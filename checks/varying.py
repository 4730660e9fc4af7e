"""Inputs of a loop that must vary over more mesh axes, because what its body makes of them does.

Inside `jax.shard_map` a type says over which mesh axes a value differs from device to device. A
carry that starts as zero is the same everywhere, and one step over sharded data makes it vary. If
nothing else differs, the initial value is cast to vary as well, and the loop traces its body again.
"""

from collections.abc import Hashable, Sequence

from jax.core import AbstractValue, ShapedArray

from checks.matching import differing_aspects


def missing_varying_axes(
    in_avals: Sequence[AbstractValue], out_avals: Sequence[AbstractValue]
) -> list[tuple[Hashable, ...]]:
    """The mesh axes over which a loop must make its carry vary before it traces its body again.

    Args:
      in_avals: avals of the carry's leaves.
      out_avals: avals of the leaves that the body returns for them, as many.

    Returns:
      For each leaf the names of the axes over which the output varies and the input does not, in
      order; none where something else differs too (save the weak type), because then no such cast
      makes the two types equal.

    Example:
      >>> import jax
      >>> from jax.sharding import AxisType, PartitionSpec as P
      >>> mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,))
      >>> @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P("data"))
      ... def body(x):
      ...     zero, row = jax.typeof(0.0), jax.typeof(x[0])
      ...     print(missing_varying_axes([zero, row], [row, row]))
      ...     return x
      >>> _ = body(jax.numpy.ones(1))
      [('data',), ()]
    """
    return [_missing(in_aval, out_aval) for in_aval, out_aval in zip(in_avals, out_avals)]


def _missing(in_aval: AbstractValue, out_aval: AbstractValue) -> tuple[Hashable, ...]:
    if not (isinstance(in_aval, ShapedArray) and isinstance(out_aval, ShapedArray)):
        return ()
    before, after = in_aval.mat, out_aval.mat
    if before == after or before.update(varying=after.varying) != after:
        return ()
    if differing_aspects(in_aval, out_aval) != ["varying axes"]:
        return ()
    return tuple(sorted(after.varying - before.varying, key=str))
