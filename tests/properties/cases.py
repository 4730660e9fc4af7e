"""Random cases for the loops: a program, and a transformation or two to put it through."""

from typing import Any, NamedTuple

import jax
from hypothesis import strategies as st

from checks import assert_loops_agree
from checks import transformations as t
from checks.loops_agree import Agreement
from checks.strategies import Program, loop_programs
from checks.strategies.sources import Block, Cond, Loop
from tests.helpers.implementations import JAX, OURS, PYTHON

POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "sin_and_mul": lambda primitive, *_, **__: primitive.name in ("sin", "mul"),
    "half": lambda primitive, *_, **__: sum(map(ord, primitive.name)) % 2 == 0,
}
WEAK_LITERALS = {"0.25", "0", "1", "2"}
RTOL = 1e-3


class Case(NamedTuple):
    """What is run on each implementation."""

    program: Program
    transformation: t.Transformation

    def __str__(self) -> str:
        return f"{self.program}\n# under {self.transformation}"


@st.composite
def transformations(draw: st.DrawFn, num_args: int) -> t.Transformation:
    """A transformation, or one of another, often as part of a compiled program."""
    first = draw(_single(num_args))
    if draw(st.booleans()):
        first = t.compose(draw(_single(num_args)), first)
    inside = "jit" in first.name
    return first if inside or draw(st.integers(0, 3)) == 0 else t.compose(t.jit(), first)


def _single(num_args: int) -> st.SearchStrategy[t.Transformation]:
    axes = st.lists(st.sampled_from([0, None]), min_size=num_args, max_size=num_args)
    lanes = axes.filter(lambda drawn: 0 in drawn).map(lambda drawn: t.vmap(tuple(drawn)))
    policies = st.sampled_from(sorted(POLICIES)).map(lambda n: t.checkpoint(POLICIES[n], n))
    fixed = [t.eager(), t.jit(), t.jvp(), t.linearize(), t.vjp(), t.vjp(), t.disable_jit()]
    return st.one_of(st.sampled_from(fixed), lanes, lanes, policies)


@st.composite
def cases(draw: st.DrawFn, **options: Any) -> Case:
    """A program with a transformation.

    Every eighth program may break the contract, and in every fourth most loops have to promote.
    """
    drift, weak_inits = draw(st.integers(0, 7)) == 7, draw(st.integers(0, 3)) == 3
    program = draw(loop_programs(drift=drift, weak_inits=weak_inits, **options))
    return Case(program, draw(transformations(len(program.parameters))))


def check(case: Case) -> Agreement:
    """Run a case on our loops, JAX's and Python's.

    JAX's loops promote a weak init once and refuse a body that needs it twice. Under `disable_jit`
    they neither promote nor check, and refuse zero steps; ours and Python's are the same there.
    """
    step_by_step = "disable_jit" in case.transformation.name
    impls = [OURS, PYTHON] if step_by_step else [OURS, JAX, PYTHON]
    may_refuse = [JAX] if has_weak_init(case.program.block) else []
    # Standard promotion: with strict promotion a program with weak carries would say little.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        (agreement,) = assert_loops_agree(
            case.program,
            case.program.arguments(),
            impls=impls,
            transformations=[case.transformation],
            may_refuse=may_refuse,
            rtol=RTOL,
        )
    return agreement


def has_weak_init(block: Block) -> bool:
    """Whether a loop of the program starts with a Python number."""
    for statement in block.statements:
        weak = isinstance(statement, Loop) and bool(WEAK_LITERALS & set(statement.carry.inits))
        if weak or any(has_weak_init(inner) for inner in _blocks(statement)):
            return True
    return False


def _blocks(statement: Any) -> list[Block]:
    """The blocks inside a statement."""
    if isinstance(statement, Cond):
        return [statement.on_true, statement.on_false]
    return [statement.body] if isinstance(statement, Loop) else []
