"""Advice where types differ in where values are: varying axes, or an explicit sharding.

Inside `jax.shard_map` a loop casts what only begins to vary over a mesh axis. What stops to vary,
because the devices have added it up, is cast back where that happens:

    total = jax.lax.psum(c, "d")     jax.lax.pcast(jax.lax.psum(c, "d"), ('d',), to='varying')

On a mesh with explicit axes a sharding is part of the type. It is given to the initial value where
data brought it, and given back where the body took it away.
"""

from collections.abc import Iterator

from checks.leaf_problem import LeafProblem, Rewrite, each_site, resharded
from checks.trial import Change, InitChange


def placement_changes(problem: LeafProblem) -> Iterator[Change]:
    """Changes for types that differ in varying axes or sharding alone."""
    cast = _cast_back(problem)
    if cast is not None:
        yield from each_site(problem, [cast])
    if problem.before.sharding.spec != problem.after.sharding.spec:
        if not problem.from_carry:
            code = resharded(problem.init, problem.after.sharding.spec, problem.written)
            yield Change((), (InitChange(problem.path, code),))
        spec = problem.before.sharding.spec
        yield from each_site(problem, [lambda text: resharded(text, spec, problem.written)])


def with_placement(problem: LeafProblem, changes: Iterator[Change]) -> Iterator[Change]:
    """Changes of other things, each also with a cast or sharding around it where those differ."""
    around = [] if (cast := _cast_back(problem)) is None else [cast]
    spec = problem.before.sharding.spec
    if any(part is not None for part in spec) and spec != problem.after.sharding.spec:
        around.append(lambda text: resharded(text, spec, problem.written))
    for change in changes:
        yield change
        for rewrite in around if len(change.edits) == 1 else ():
            (edit,) = change.edits
            new = rewrite(edit.new)
            if new is not None:
                yield change._replace(edits=(edit._replace(new=new),))


def _cast_back(problem: LeafProblem) -> Rewrite | None:
    """A cast to vary over the axes over which the output varies no more; None if there are none."""
    before, after = problem.before.mat.varying, problem.after.mat.varying
    lost = tuple(sorted(before - after, key=str))
    jax = problem.written.jax
    return (lambda text: f"{jax}.lax.pcast({text}, {lost!r}, to='varying')") if lost else None
