"""The one door to JAX's internals and to names that differ between JAX versions.

No other file of this project may import `jax._src`, `jax.interpreters` or `jax.extend`; a test
keeps it so. Each private name below says in one line why no public one serves. Differences between
JAX versions are found by looking at what the installed JAX offers, not by comparing version
numbers, because a release candidate or a nightly may have either form.

A *closed jaxpr* is called `jaxpr` throughout this project: JAX 0.12 merged the open and the closed
form into one class, and earlier releases keep them apart.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax

# Private: callables' names and source lines for JAX's own messages; there is no public maker.
# Private: `disable_jit`, `enable_checks` and their kin have no public reader.
# Private: typechecks, eager constants and effects of jaxprs are only there.
# Private: the eager path that compiles one primitive.
# Private: frames of this package are hidden from source lines as JAX's own are.
# Private: the class of high-level primitives is not among jax.experimental.hijax's stable names.
# Private: what nested jits have for a sharding that nobody gave.
from jax._src import (
    api_util,
    config,
    core,
    dispatch,
    hijax,
    sharding_impls,
    source_info_util,
    traceback_util,
)

# Private: the effects of `jax.experimental.io_callback`.
from jax._src import callback as _callback

# Private: which rule a primitive has under checkify is a registry without a public name.
from jax._src import checkify as _checkify

# Private: the effects of `jax.debug`, of which only the functions are public.
from jax._src import debugging as _debugging

# Private: which effects a loop may have is a registry without a public name.
from jax._src import effects as jax_effects

# Private: linearization, accumulators and jvp of jaxprs.
# Private: batching of jaxprs along chosen axes.
# Private: IR types of avals, constants and shardings; the public module has no way to them.
# Private: the newer jax.checkpoint's rules have no public registry.
from jax._src.interpreters import ad, batching, mlir, remat

# Private: tracing to jaxprs, partial evaluation and dead code of jaxprs.
from jax._src.interpreters import partial_eval as pe

# Private: JAX's rules call these loops as globals of their module, and say what params they have.
from jax._src.lax.control_flow import loops as lax_loops

# Private: an uninitialised buffer that carries a memory space; `jax.lax.empty` cannot.
from jax._src.lax.lax import empty2 as _empty_scalar

# Private: the MLIR bindings that JAX itself lowers with.
from jax._src.lib.mlir import ir

# Private: the StableHLO dialect of those bindings, and the one of functions.
from jax._src.lib.mlir.dialects import func, hlo

# Private: the mesh that arrays with explicit sharding are made under.
from jax._src.mesh import use_abstract_mesh

# Private: what old random keys have as a parameter, a tuple of functions, one for each algorithm.
from jax._src.random.prng import PRNGImpl as RandomImplementation  # noqa: F401

# Private: the rules that turn Refs into values have no public registry.
from jax._src.state import discharge as _discharge

# Private: mutable arrays' type, and the effect of writing to one.
from jax._src.state.types import AbstractRef, AccumEffect, WriteEffect

# Private: caches that hold a jaxpr weakly and know JAX's tracing context.
from jax._src.util import cache, weakref_lru_cache
from jax.extend.core import JaxprEqn, Literal, Primitive, Var
from jax.extend.core.primitives import add_jaxvals_p as add_cotangents_p  # noqa: F401
from jax.extend.core.primitives import copy_p, stop_gradient_p  # noqa: F401

Jaxpr = Any  # a closed jaxpr: ClosedJaxpr before JAX 0.12, Jaxpr since
Aval = Any  # an abstract value; jax.core.AbstractValue has none of its subclasses' attributes

# ---------------------------------------------------------------- trees of values

try:
    # Private: flat trees that keep a value's structure; since JAX 0.11 in a module of their own.
    from jax._src import flattree  # pyrefly: ignore[missing-module-attribute]
except ImportError:
    # Private: the same before.
    from jax._src.tree_util import FlatTree as flattree  # noqa: N813

flatten_tree, pack_trees = flattree.flatten, flattree.pack


# ---------------------------------------------------------------- tracing


def cached_weakly(fun: Callable) -> Callable:
    """Cache a function of an object, held weakly, and of hashable values, in any context."""
    return weakref_lru_cache(fun, trace_context_in_key=False)


def cached_by_jaxpr(fun: Callable) -> Callable:
    """Cache a function of a jaxpr, held weakly, and of hashable values."""
    return weakref_lru_cache(fun)


def cached_by_value(max_size: int) -> Callable[[Callable], Callable]:
    """Cache a function of one hashable value, held strongly, until `jax.clear_caches()`."""
    return cache(max_size)


# The value that nested jits have for a sharding that nobody gave.
UNSPECIFIED_SHARDING = sharding_impls.UNSPECIFIED


def open_jaxpr(jaxpr: Any) -> Any:
    """The inputs, outputs and equations of a jaxpr, open or closed."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def map_equations(fun: Callable[[JaxprEqn], JaxprEqn], jaxpr: Any) -> Any:
    """Replace each equation of a jaxpr, open or closed, by one of the same effects.

    It is the same object if `fun` changes none.
    """
    inner = open_jaxpr(jaxpr)
    eqns = [fun(eqn) for eqn in inner.eqns]
    if all(new is old for new, old in zip(eqns, inner.eqns, strict=True)):
        return jaxpr
    new_inner = inner.replace(eqns=eqns)
    return new_inner if inner is jaxpr else jaxpr.replace(jaxpr=new_inner)


def map_parameters(fun: Callable[[Any], Any], params: dict[str, Any]) -> dict[str, Any]:
    """Replace each value among an equation's parameters, those in tuples and lists one by one.

    A tuple or list is the same object if `fun` changes nothing in it.
    """

    def in_value(value: Any) -> Any:
        if not isinstance(value, (tuple, list)):
            return fun(value)
        new = [in_value(item) for item in value]
        if all(a is b for a, b in zip(new, value, strict=True)):
            return value
        return value._make(new) if hasattr(value, "_make") else type(value)(new)

    return {name: in_value(value) for name, value in params.items()}


def with_parameters(eqn: JaxprEqn, params: dict[str, Any]) -> JaxprEqn:
    """An equation with other parameters; the same object if they are its own."""
    is_same = all(new is eqn.params[name] for name, new in params.items())
    return eqn if is_same else eqn.replace(params=params)


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation is a jaxpr, open or closed."""
    return isinstance(value, (core.Jaxpr, getattr(core, "ClosedJaxpr", core.Jaxpr)))


def is_closed_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation is a jaxpr with its constants."""
    return isinstance(value, getattr(core, "ClosedJaxpr", core.Jaxpr))


def current_trace() -> Any:
    """The trace that operations go to now."""
    return core.trace_ctx.trace


def trace_around(trace: Any) -> Any:
    """The trace in which a jaxpr's trace was begun; None for a trace that makes no jaxpr."""
    return trace.parent_trace if isinstance(trace, pe.DynamicJaxprTrace) else None


# In the keys of JAX's caches: what vmap makes of a loop depends on whether checks will be added.
_on_the_way_to_checkify = jax.make_user_context(False)


def inside_checkify() -> bool:
    """Whether what is traced now is on its way into `checkify`."""
    trace = core.trace_ctx.trace
    while trace is not None and not _on_the_way_to_checkify.value:
        frame = getattr(trace, "frame", None)
        if frame is not None and frame.debug_info.traced_for == "checkify":
            break
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


class TracedFunction(NamedTuple):
    """A function traced to a jaxpr: `jaxpr` takes `consts` first, then the flat arguments."""

    jaxpr: Jaxpr
    consts: list[Any]
    out_tree: Any
    out_avals: list[Aval]


def trace_function(fun: Callable, arg_avals: Sequence[Any], debug_info: Any) -> TracedFunction:
    """Trace `fun` on flat trees of avals, one for each positional argument.

    The trace is cached by the identity of `fun`, its argument types and JAX's tracing context.
    """
    in_avals = pack_trees((tuple(arg_avals), {}))
    with _on_the_way_to_checkify(inside_checkify()):
        closed, out = pe.trace_to_jaxpr(fun, in_avals, debug_info)
    jaxpr, consts = pe.separate_consts(closed)
    return TracedFunction(jaxpr, list(consts), out.tree, list(out))


def trace_flat(fun: Callable, avals: Sequence[Aval], debug_info: Any) -> TracedFunction:
    """Trace a function of flat arguments that returns a flat list."""
    return trace_function(fun, [flatten_tree(aval) for aval in avals], debug_info)


_debug_infos: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def debug_info(traced_for: str, fun: Callable, *args: Any) -> Any:
    """The names of `fun` and of its arguments, for JAX's error messages.

    They are remembered for each function and structure of arguments: reading a signature takes
    longer than all else that a repeated eager call does in Python. Functions of the same code, such
    as a lambda that is made anew at each call, have the same names.
    """
    key: tuple[Any, ...] = traced_for, jax.tree.structure(args)
    owner: Any = fun
    if type(fun) is types.FunctionType and not fun.__dict__:
        # Code is compared by its content, which has its line but not its file.
        owner, key = fun.__code__, (*key, fun.__code__.co_filename)
    try:
        known = _debug_infos.setdefault(owner, {})
    except TypeError:  # the function cannot be referred to weakly, or not hashed
        return _new_debug_info(traced_for, fun, args)
    if key not in known:
        known[key] = _new_debug_info(traced_for, fun, args)
    return known[key]


def _new_debug_info(traced_for: str, fun: Callable, args: Any) -> Any:
    debug = api_util.debug_info(traced_for, fun, args, {})
    wrapped = inspect.unwrap(fun)
    if wrapped is not fun and isinstance(wrapped, functools.partial):
        # JAX 0.10 finds no source for a jitted partial.
        debug = debug._replace(func_src_info=api_util.fun_sourceinfo(wrapped))
    return debug


def with_unnamed_argument(debug: Any, position: int) -> Any:
    """Debug info for a function with one flat argument more, which has no name."""
    names = debug.arg_names
    if names is None:
        return debug
    return debug._replace(arg_names=(*names[:position], "", *names[position:]))


def trace_closed(fun: Callable, avals: Sequence[Aval], debug_info: Any) -> Jaxpr:
    """Trace a function of flat arguments that returns a flat list; constants stay inside."""
    in_avals = pack_trees((tuple(flatten_tree(aval) for aval in avals), {}))
    return pe.trace_to_jaxpr(fun, in_avals, debug_info)[0]


def traced_for(jaxpr: Jaxpr) -> str:
    """For which purpose a jaxpr was traced, by its debug info."""
    return open_jaxpr(jaxpr).debug_info.traced_for


def source_of(jaxpr: Jaxpr) -> str:
    """The function that a jaxpr was traced from, with its file and line."""
    return open_jaxpr(jaxpr).debug_info.func_src_info or "a function without a name"


def without_names(jaxpr: Jaxpr) -> Any:
    """The debug info of a jaxpr whose inputs and outputs have been rearranged."""
    return jaxpr.jaxpr.debug_info.with_unknown_names()


# ---------------------------------------------------------------- jaxprs


def inputs_as_consts(jaxpr: Jaxpr) -> tuple[Jaxpr, list[Any]]:
    """The same jaxpr with the constants that it holds as leading inputs, and those constants."""
    if not jaxpr.consts:
        return jaxpr, []
    # JAX's checks refuse a Ref among outputs; here it is a residual, and its plan takes it out.
    has_refs = any(map(is_ref, jaxpr.out_avals))
    with jax.enable_checks(config.enable_checks.value and not has_refs):
        jaxpr, consts = pe.separate_consts(jaxpr)
    return jaxpr, list(consts)


def build_jaxpr(
    jaxpr: Jaxpr, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]
) -> Jaxpr:
    """A jaxpr of the given inputs, outputs and equations, with the constants of `jaxpr`."""
    inner = jaxpr.jaxpr
    effects = pe.make_jaxpr_effects(inner.constvars, invars, outvars, eqns)
    new = inner.replace(
        invars=list(invars),
        outvars=list(outvars),
        eqns=list(eqns),
        effects=effects,
        debug_info=inner.debug_info.with_unknown_names(),
    )
    return jaxpr.replace(jaxpr=new)


def with_equations(
    jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], outvars: Sequence[Any] | None = None
) -> Jaxpr:
    """A jaxpr of the same inputs that computes its outputs in another way."""
    inner = jaxpr.jaxpr
    outvars = list(inner.outvars if outvars is None else outvars)
    effects = pe.make_jaxpr_effects(inner.constvars, inner.invars, outvars, eqns)
    new = jaxpr.replace(jaxpr=inner.replace(eqns=list(eqns), outvars=outvars, effects=effects))
    return _batched_alike(new, jaxpr, range(len(inner.invars)), range(len(outvars)))


def permute(jaxpr: Jaxpr, inputs: Sequence[int], outputs: Sequence[int] | None = None) -> Jaxpr:
    """Reorder inputs by position, and reorder or drop outputs.

    Before: [in_0, in_1, ...] -> [out_0, out_1, ...]
    After:  [in_inputs[0], in_inputs[1], ...] -> [out_outputs[0], ...]
    """
    num_inputs, num_outputs = len(jaxpr.in_avals), len(jaxpr.out_avals)
    in_order = tuple(inputs)
    out_order = tuple(range(num_outputs)) if outputs is None else tuple(outputs)
    if in_order == tuple(range(num_inputs)) and out_order == tuple(range(num_outputs)):
        return jaxpr
    return _batched_alike(_permute(jaxpr, in_order, out_order), jaxpr, in_order, out_order)


@cached_weakly
def _permute(jaxpr: Jaxpr, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Jaxpr:
    inner = jaxpr.jaxpr
    names, paths = inner.debug_info.arg_names, inner.debug_info.result_paths
    has_paths = isinstance(paths, (tuple, list)) and len(paths) == len(inner.outvars)
    debug = inner.debug_info._replace(
        arg_names=None if names is None else tuple(names[i] for i in inputs),
        result_paths=tuple(paths[i] for i in outputs) if has_paths else None,
    )
    new = inner.replace(
        invars=[inner.invars[i] for i in inputs],
        outvars=[inner.outvars[i] for i in outputs],
        debug_info=debug,
    )
    return jaxpr.replace(jaxpr=new)


@cached_weakly
def _with_unused_inputs(jaxpr: Jaxpr, avals: tuple[Aval, ...]) -> Jaxpr:
    inner = jaxpr.jaxpr
    new_variable = core.gensym()
    invars = [*inner.invars, *(new_variable(aval) for aval in avals)]
    names = inner.debug_info.arg_names
    if names is not None:
        names = (*names, *[""] * len(avals))
    debug = inner.debug_info._replace(arg_names=names)
    return jaxpr.replace(jaxpr=inner.replace(invars=invars, debug_info=debug))


def with_unused_inputs(jaxpr: Jaxpr, avals: Sequence[Aval]) -> Jaxpr:
    """The same jaxpr with more inputs at the end, which it does not read."""
    if not avals:
        return jaxpr
    more = _with_unused_inputs(jaxpr, tuple(avals))
    inputs = [*range(len(jaxpr.in_avals)), *[None] * len(avals)]
    return _batched_alike(more, jaxpr, inputs, range(len(jaxpr.out_avals)))


variable_maker = core.gensym


def forwarded_inputs(jaxpr: Jaxpr) -> list[int | None]:
    """For each output the position of the input that it is, or None."""
    return pe._jaxpr_forwarding(jaxpr.jaxpr)


def _find_call_primitive() -> tuple[Primitive, str]:
    # The call-like primitive that the lowering inlines moved and renamed its parameter in 0.12.
    if hasattr(core, "eval_jaxpr_p"):
        return core.eval_jaxpr_p, "call_jaxpr"
    from jax._src.lax.eval_jaxpr import eval_jaxpr_p  # private: the same primitive before 0.12

    return eval_jaxpr_p, "jaxpr"


_call_p, _call_parameter = _find_call_primitive()


def call_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """Evaluate a jaxpr as one equation that the lowering inlines."""
    return _call_p.bind(*args, **{_call_parameter: jaxpr})


def called_jaxpr(eqn: JaxprEqn) -> Jaxpr | None:
    """The jaxpr of an equation of `call_jaxpr` or `staged_call_equation`, else None."""
    if eqn.primitive is _call_p:
        return eqn.params[_call_parameter]
    return eqn.params["call_jaxpr"] if eqn.primitive is staged_call_p else None


def evaluate_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """Evaluate a jaxpr equation by equation."""
    return core.jaxpr_as_fun(jaxpr)(*args)


staged_call_p = core.closed_call_p


def _let_calls_have_names() -> None:
    """Let `jax_enable_checks` pass calls with the name that vmap gives them, as JAX 0.12 does."""
    check = core.custom_typechecks[staged_call_p]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(check).parameters.values())
    if not takes_all:
        core.custom_typechecks[staged_call_p] = lambda context, *atoms, call_jaxpr, **_: check(
            context, *atoms, call_jaxpr=call_jaxpr
        )


_let_calls_have_names()


def staged_call_equation(
    jaxpr: Jaxpr, invars: Sequence[Any], outvars: Sequence[Any], like: JaxprEqn
) -> JaxprEqn:
    """An equation that evaluates `jaxpr`, with the source line and context of `like`."""
    effects = core.eqn_effects(jaxpr, invars)
    params = {"call_jaxpr": _without_wrong_names(jaxpr)}
    return core.new_jaxpr_eqn(
        invars, outvars, staged_call_p, params, effects, like.source_info, like.ctx
    )


def _without_wrong_names(jaxpr: Jaxpr) -> Jaxpr:
    """The same jaxpr; JAX 0.10's checkify gives those of custom rules more inputs than names."""
    inner = jaxpr.jaxpr
    names = inner.debug_info.arg_names
    if names is None or len(names) == len(inner.invars):
        return jaxpr
    return jaxpr.replace(jaxpr=inner.replace(debug_info=without_names(jaxpr)))


def new_equation(
    primitive: Primitive,
    invars: Sequence[Any],
    outvars: Sequence[Any],
    params: dict[str, Any],
    like: JaxprEqn,
) -> JaxprEqn:
    """An equation of `primitive`, its effects computed, with the source line of `like`."""
    _, effects = primitive.abstract_eval(*[v.aval for v in invars], **params)
    return core.new_jaxpr_eqn(
        invars, outvars, primitive, params, effects, like.source_info, like.ctx
    )


# ---------------------------------------------------------------- forward mode and linearization

Zero = ad.Zero
instantiate_zeros = ad.instantiate_zeros


def jvp_jaxpr(
    jaxpr: Jaxpr, nonzeros: Sequence[bool], instantiate: Sequence[bool]
) -> tuple[Jaxpr, list[bool]]:
    """Add tangents to a jaxpr: [*in] -> [*out] becomes [*in, *nonzero in'] -> [*out, *out']."""
    jvp, nonzeros_out = ad.jvp_jaxpr(jaxpr, list(nonzeros), list(instantiate))
    inputs, outputs = (
        [*range(len(marks)), *(i for i, nonzero in enumerate(marks) if nonzero)]
        for marks in (nonzeros, nonzeros_out)
    )
    return _batched_alike(jvp, jaxpr, inputs, outputs), list(nonzeros_out)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is a symbolic zero."""
    return type(tangent) is Zero


def zero_tangent(primal: Any) -> Any:
    """The symbolic zero tangent of a primal value (float0 for integers and booleans)."""
    return Zero(jax.typeof(primal).to_tangent_aval())


class Linearization(NamedTuple):
    """A body split into what runs now and what is linear in the tangents.

    primal_jaxpr:  [*primals_in] -> [*primals_out, *residuals]
    tangent_jaxpr: [*residuals, *nonzero tangents_in] -> [*nonzero tangents_out]

    The last residuals belong to `structured`, a tree that JAX wants back in its own shape (or None
    where the installed JAX has no structured residuals).
    """

    primal_jaxpr: Jaxpr
    tangent_jaxpr: Jaxpr
    nonzeros_out: list[bool]
    structured: Any


_vjp_node: Any = getattr(ad, "vjp_node", None)  # since JAX 0.12, with structured residuals


def linearize_jaxpr(
    jaxpr: Jaxpr, nonzeros: Sequence[bool], instantiate: Sequence[bool], is_vjp: bool
) -> Linearization:
    """Linearize a jaxpr. No residual is left out for being an input: callers look for that."""
    is_forwarded = [*[False] * len(jaxpr.consts), *map(is_ref, jaxpr.in_avals)]
    primal, about_residuals, nonzeros_out, forwarded, tangent = ad.linearize_jaxpr(
        jaxpr,
        nonzeros,
        instantiate=list(instantiate),
        # Before JAX 0.12 its checks refuse a jaxpr that returns a Ref, so those are put back here.
        allow_fwds=is_forwarded if _vjp_node is None else False,
        is_vjp=is_vjp,
    )
    if isinstance(about_residuals, int):  # before JAX 0.12: the number of residuals
        inputs = [None] * len(jaxpr.consts) + list(primal.jaxpr.invars)
        primal = _with_forwarded_residuals(primal, about_residuals, forwarded, inputs)
        return Linearization(primal, tangent, list(nonzeros_out), None)
    _, unstructured, structured = about_residuals.unpack()
    num_plain, num_structured = len(unstructured), len(structured)
    num_tangents = len(tangent.in_avals) - num_plain - num_structured
    # Before: inputs are unstructured residuals, tangents, structured residuals.
    # After:  the tangents come last.
    order = [
        *range(num_plain),
        *range(num_plain + num_tangents, len(tangent.in_avals)),
        *range(num_plain, num_plain + num_tangents),
    ]
    return Linearization(primal, permute(tangent, order), list(nonzeros_out), structured)


def _with_forwarded_residuals(
    primal: Jaxpr, num_new: int, forwarded: Sequence[int | None], inputs: Sequence[Any]
) -> Jaxpr:
    """Return the inputs that are residuals, too.

    before: [*primals_in] -> [*primals_out, *residuals that are no input]
    after:  [*primals_in] -> [*primals_out, *residuals]
    """
    if all(i is None for i in forwarded):
        return primal
    outvars = primal.jaxpr.outvars
    new = iter(outvars[len(outvars) - num_new :])
    residuals = [next(new) if i is None else inputs[i] for i in forwarded]
    outputs = [*outvars[: len(outvars) - num_new], *residuals]
    return with_equations(primal, primal.jaxpr.eqns, outputs)


def linearize_result(
    primals_out: list[Any],
    nonzeros_out: list[bool],
    residuals: list[Any],
    structured: Any,
    tangent_fun: Callable[..., list[Any]],
) -> tuple[Any, ...]:
    """What a linearization rule returns to the installed JAX.

    `tangent_fun(residuals, structured, *tangents)` gets both kinds of residuals.
    """
    if _vjp_node is not None:
        return primals_out, nonzeros_out, residuals, structured, tangent_fun
    return primals_out, nonzeros_out, residuals, lambda res, *ts: tangent_fun(res, None, *ts)


def tangent_primitive(primitive: Primitive, is_vjp: bool) -> Primitive:
    """The primitive that a tangent program binds: JAX 0.12 marks those that only a vjp reads."""
    return _vjp_node(primitive) if is_vjp and _vjp_node is not None else primitive


# ---------------------------------------------------------------- reverse mode

GradAccum, RefAccum, ValAccum, NullAccum = ad.GradAccum, ad.RefAccum, ad.ValAccum, ad.NullAccum


def backward_pass(jaxpr: Jaxpr, primals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
    """Pull cotangents back through a linear jaxpr into the accumulators among `primals`.

    Returns the log that transposition rules wrote, which is always empty before JAX 0.12.
    """
    log = ad.backward_pass3(jaxpr.jaxpr, False, jaxpr.consts, primals, cotangents)
    return {} if log is None else log


def zeros_like_aval(aval: Aval) -> Any:
    """An array of zeros of a cotangent's type."""
    return ad.zeros_like_aval(aval)


def take_sum(accumulator: Any) -> Any:
    """The cotangents added up so far, which the accumulator then forgets; zeros if it has none."""
    if isinstance(accumulator, ValAccum) and not is_zero(accumulator.val):
        total, aval = accumulator.val, jax.typeof(accumulator.val)
        if core.typematch(aval, accumulator.aval):
            accumulator.val = Zero(accumulator.aval)
            return total
    return zeros_like_aval(accumulator.aval)


# ---------------------------------------------------------------- partial evaluation


class SplitJaxpr(NamedTuple):
    """A body split by what is known.

    known_jaxpr:   [*known inputs] -> [*known outputs, *residuals]
    unknown_jaxpr: [*residuals, *unknown inputs] -> [*unknown outputs]
    """

    known_jaxpr: Jaxpr
    unknown_jaxpr: Jaxpr
    unknowns_out: list[bool]


def split_known(jaxpr: Jaxpr, unknowns: Sequence[bool], instantiate: Sequence[bool]) -> SplitJaxpr:
    """Split a jaxpr by data dependence on its unknown inputs."""
    known, unknown, unknowns_out, _ = pe.partial_eval_jaxpr_nounits(
        jaxpr, list(unknowns), list(instantiate)
    )
    known_inputs, known_outputs = (
        [i for i, is_unknown in enumerate(marks) if not is_unknown]
        for marks in (unknowns, unknowns_out)
    )
    residuals = [None] * (len(known.out_avals) - len(known_outputs))
    known = _batched_alike(known, jaxpr, known_inputs, [*known_outputs, *residuals])
    return SplitJaxpr(known, unknown, list(unknowns_out))


class SplitForCheckpoint(NamedTuple):
    """A body split under a checkpoint policy.

    known_jaxpr:  [*known inputs] -> [*known outputs, *residuals]
    staged_jaxpr: [*residuals, *all inputs] -> [*all outputs]
    """

    known_jaxpr: Jaxpr
    staged_jaxpr: Jaxpr
    unknowns_out: list[bool]
    num_residuals: int


def split_for_checkpoint(
    jaxpr: Jaxpr, unknowns: Sequence[bool], ensure_unknown: Sequence[bool], policy: Callable
) -> SplitForCheckpoint:
    """Split a jaxpr into what runs forwards and what is run again, saving what the policy says."""
    opened, held = (jaxpr, []) if _CLOSED_IS_OPEN else inputs_as_consts(jaxpr)
    known, staged, unknowns_out, _, num_residuals = pe.partial_eval_jaxpr_custom(
        opened.jaxpr,
        in_unknowns=[*[False] * len(held), *unknowns],
        in_inst=True,
        ensure_out_unknowns=list(ensure_unknown),
        ensure_out_inst=True,
        saveable=policy,
    )
    return SplitForCheckpoint(
        _close_with(known, held, 0),
        _close_with(staged, held, num_residuals),
        list(unknowns_out),
        num_residuals,
    )


# Since JAX 0.12 a jaxpr holds its constants itself, and what it is split into does so too.
_CLOSED_IS_OPEN = not hasattr(core, "ClosedJaxpr") or core.ClosedJaxpr is core.Jaxpr


def _close_with(inner: Any, held: Sequence[Any], start: int) -> Jaxpr:
    """A jaxpr that holds the values of some of its inputs, from `start` on."""
    if not held:
        return pe.close_jaxpr(inner)
    end = start + len(held)
    constants = inner.invars[start:end]
    others = [*inner.invars[:start], *inner.invars[end:]]
    effects = pe.make_jaxpr_effects(constants, others, inner.outvars, inner.eqns)
    debug = inner.debug_info.with_unknown_names()
    return core.ClosedJaxpr(
        inner.replace(constvars=constants, invars=others, effects=effects, debug_info=debug), held
    )


def register_rematerialization(primitive: Primitive, rule: Callable) -> None:
    """Register a rule of the newer `jax.checkpoint` (`jax_remat3`).

    `rule(split, *args, **params)` returns outputs, residuals and `again(residuals, *args)`, which
    computes the outputs once more. `split(jaxpr)` splits a jaxpr in two under the policy:
    [*inputs] -> [*outputs, *residuals] and [*residuals, *inputs] -> [*outputs].
    """
    remat_jaxpr: Any = remat.remat_jaxpr  # its arguments differ between versions
    takes_trace = len(inspect.signature(remat_jaxpr).parameters) > 2
    keeps_residuals = hasattr(remat, "_f_rem")  # since JAX 0.12 rules return their residuals

    def registered(policy_or_trace: Any, *args: Any, **params: Any) -> Any:
        def split(jaxpr: Jaxpr) -> tuple[Jaxpr, Jaxpr]:
            if not takes_trace:
                return remat_jaxpr(jaxpr, policy_or_trace)[:2]
            trace = policy_or_trace
            return remat_jaxpr(jaxpr, trace.policy, trace.custom_vjp_rules, False)[:2]

        outputs, residuals, again = rule(split, *args, **params)
        if keeps_residuals:
            return outputs, residuals, again
        return outputs, partial(again, residuals)

    remat.rules[primitive] = registered


def unknown_outputs(
    trace: Any, primitive: Primitive, inputs: Sequence[Any], avals: Sequence[Aval], params: dict
) -> list[Any]:
    """Stage an equation into the unknown program of a partial evaluation; return its outputs."""
    tracers_in = [trace.instantiate_const(trace.to_jaxpr_tracer(x)) for x in inputs]
    tracers_out = [pe.JaxprTracer(trace, pe.PartialVal.unknown(a), None) for a in avals]
    stack = source_info_util.current_name_stack()[len(trace.name_stack) :]
    source = source_info_util.current().replace(name_stack=stack)
    _, effects = primitive.abstract_eval(*[t.aval for t in tracers_in], **params)
    equation = pe.new_eqn_recipe(trace, tracers_in, tracers_out, primitive, params, effects, source)
    for tracer in tracers_out:
        tracer.recipe = equation
    if jax_effects.partial_eval_kept_effects.filter_in(effects):
        trace.effect_handles.append(pe.EffectHandle(tracers_in, equation))
    return tracers_out


# ---------------------------------------------------------------- hijax


class LowJaxpr(NamedTuple):
    """A jaxpr on the arrays that high-level values are made of, and the way back.

    jaxpr: [*arrays of inputs] -> [*what the boxes among the inputs hold afterwards, *outputs]

    `num_held` counts those arrays for each input. `raise_outputs(inputs, outputs)` sets the boxes
    and returns the high-level outputs.
    """

    jaxpr: Jaxpr
    num_held: list[int]
    raise_outputs: Callable[[Sequence[Any], Sequence[Any]], list[Any]]


_HAS_BOXES = hasattr(core, "cur_qdd")  # before JAX 0.12: mutable boxes whose type may change


def is_high(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr has anything of a high-level type."""
    return jaxpr.jaxpr.is_high


def boxes_among(avals: Sequence[Aval]) -> list[bool]:
    """Which types are those of mutable boxes."""
    return [getattr(aval, "has_qdd", False) for aval in avals]


def logs_among(avals: Sequence[Aval]) -> list[bool]:
    """Which types are those of boxes that are only added to, and never read in a program."""
    return [getattr(aval, "is_writer", False) for aval in avals]


def types_with_boxes(jaxpr: Jaxpr) -> list[Any]:
    """The types of a jaxpr's inputs; for a box also what it holds at first."""
    return jaxpr.in_aval_qdds if _HAS_BOXES else jaxpr.in_avals


def arrays_of(jaxpr: Jaxpr, inputs: Sequence[Any]) -> list[list[Any]]:
    """The arrays that each input of a jaxpr is made of; of a box, those that it holds."""

    def arrays(aval: Any, x: Any) -> list[Any]:
        is_box = getattr(aval, "has_qdd", False)
        return list(aval.read_loval_in(x) if is_box else aval.lower_val(x))

    return [arrays(aval, x) for aval, x in zip(types_with_boxes(jaxpr), inputs, strict=True)]


def lower_high_jaxpr(jaxpr: Jaxpr) -> LowJaxpr:
    """Lower a jaxpr with high-level types."""
    types = types_with_boxes(jaxpr)
    finals = jaxpr.final_aval_qdds if _HAS_BOXES else ()
    low, out_tree = pe.lower_jaxpr(jaxpr, flatten_tree(([list(a.lo_ty()) for a in types], {})))

    def raise_outputs(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        groups = out_tree.update(list(outputs))
        if _HAS_BOXES:
            contents, groups = groups.unpack()
            for aval, box, arrays in zip(finals, inputs, contents.unpack(), strict=True):
                if getattr(aval, "has_qdd", False):
                    aval.aval.update_from_loval2(aval.qdd, box, arrays)
        rows = zip(jaxpr.out_avals, groups.unpack(), strict=True)
        return [aval.raise_val2(x) for aval, x in rows]

    held = [len(group) for group in out_tree.unpack()[0].unpack()] if _HAS_BOXES else []
    return LowJaxpr(low, held, raise_outputs)


def boxes_that_change_type(jaxpr: Jaxpr) -> list[tuple[Any, Any]]:
    """What boxes hold before and after, for those that then hold another type of value."""
    if not _HAS_BOXES or not any(boxes_among(jaxpr.in_avals)):
        return []
    rows = zip(jaxpr.in_aval_qdds, jaxpr.final_aval_qdds, strict=True)
    held = [(old.qdd, new.qdd) for old, new in rows if getattr(old, "has_qdd", False)]
    return [(old, new) for old, new in held if _without_weak_types(old) != _without_weak_types(new)]


def _without_weak_types(held: Any) -> Any:
    return held.normalize() if hasattr(held, "normalize") else held


def register_lojax(primitive: Primitive, is_high_rule: Callable, to_lojax: Callable) -> None:
    """Say when an equation of a primitive is high-level, and how to lower it."""
    primitive.is_high = is_high_rule
    primitive.to_lojax = to_lojax


# ---------------------------------------------------------------- dead code

_DCE_KNOWS_LIVE_INPUTS = "live_inputs" in inspect.signature(pe.dce_jaxpr).parameters


class DeadCodeResult(NamedTuple):
    """A jaxpr without what no used output needs."""

    jaxpr: Jaxpr
    used_inputs: list[bool]


def eliminate_dead_code(
    jaxpr: Jaxpr,
    used_outputs: Sequence[bool],
    keep_inputs: Sequence[bool],
    live_inputs: Sequence[bool] | None = None,
) -> DeadCodeResult:
    """Drop unused outputs and what only they need. `live_inputs`: Refs that are read afterwards."""
    read = _inputs_read(jaxpr) if all(used_outputs) else None
    if read is not None and all(map(operator.or_, read, keep_inputs)):
        return DeadCodeResult(jaxpr, [True] * len(read))  # the usual case, seen at less cost
    if not _DCE_KNOWS_LIVE_INPUTS or live_inputs is None:
        live_inputs = ()
    new, used = _eliminate_dead_code(
        jaxpr, tuple(used_outputs), tuple(keep_inputs), tuple(live_inputs)
    )
    return DeadCodeResult(jaxpr if new is None else new, list(used))


@cached_weakly
def _inputs_read(jaxpr: Jaxpr) -> tuple[bool, ...] | None:
    """Which inputs a jaxpr reads, if it is plain to see that it needs all of its equations."""
    inner = jaxpr.jaxpr
    read = {v for v in inner.outvars if isinstance(v, Var)}
    for eqn in reversed(inner.eqns):
        if eqn.effects or eqn.primitive in pe.dce_rules or read.isdisjoint(eqn.outvars):
            return None
        read.update([v for v in eqn.invars if type(v) is not Literal])
    return tuple(v in read for v in inner.invars)


@cached_weakly  # equal loops whose bodies are the same object are lowered once
def _eliminate_dead_code(
    jaxpr: Jaxpr, used_outputs: tuple[bool, ...], keep_inputs: tuple[bool, ...], live: tuple
) -> tuple[Jaxpr | None, tuple[bool, ...]]:
    """None in place of a jaxpr in which nothing is dead: a cache must not hold its own key."""
    options = {"live_inputs": list(live)} if live else {}
    inner, used = pe.dce_jaxpr(jaxpr.jaxpr, list(used_outputs), list(keep_inputs), **options)
    if inner is jaxpr.jaxpr:
        return None, tuple(used)
    inputs, outputs = (
        [i for i, is_used in enumerate(marks) if is_used] for marks in (used, used_outputs)
    )
    return _batched_alike(jaxpr.replace(jaxpr=inner), jaxpr, inputs, outputs), tuple(used)


def register_dead_code_rule(primitive: Primitive, rule: Callable) -> None:
    """Register `rule(used_outputs, live_inputs, equation)`; older JAX has no live inputs."""
    if _DCE_KNOWS_LIVE_INPUTS:
        pe.dce_rules[primitive] = rule
    else:
        pe.dce_rules[primitive] = lambda used, eqn: rule(used, [True] * len(eqn.invars), eqn)


def must_keep(equation: JaxprEqn, live_inputs: Sequence[bool]) -> bool:
    """Whether an equation has effects that forbid dropping it."""
    live = [live_inputs] if _DCE_KNOWS_LIVE_INPUTS else []
    return pe.has_effects(equation, *live)


# ---------------------------------------------------------------- Refs


class DischargeContext(NamedTuple):
    """What a rule that turns Refs into values is told beside its arguments.

    `discharge(jaxpr, should)` does the same to a jaxpr: [*inputs] -> [*outputs, *contents of the
    discharged Refs].
    """

    in_avals: Sequence[Aval]
    should_discharge: Sequence[bool]
    discharge: Callable[[Jaxpr, Sequence[bool]], Jaxpr]


def register_discharge_rule(primitive: Primitive, rule: Callable) -> None:
    """Register `rule(context, *args, **params)`, which returns new contents and outputs."""
    if hasattr(_discharge, "DischargeContext"):
        _discharge.register_discharge_rule(primitive)(partial(_discharge_since_0_12, rule))
    else:
        register = getattr(_discharge, "register_partial_discharge_rule")  # noqa: B009
        register(primitive)(partial(_discharge_before_0_12, rule))


def _discharge_since_0_12(rule: Callable, context: Any, *args: Any, **params: Any) -> Any:
    def discharge(jaxpr: Jaxpr, should: Sequence[bool]) -> Jaxpr:
        options: dict[str, Any] = {"strip_memory_space": context.strip_memory_space}
        return _discharge.discharge_state(jaxpr, should_discharge=list(should), **options)

    ours = DischargeContext(context.in_avals, context.should_discharge, discharge)
    return rule(ours, *args, **params)


def _discharge_before_0_12(
    rule: Callable, should: Sequence[bool], in_avals: Any, _: Any, *args: Any, **params: Any
) -> Any:
    def discharge(jaxpr: Jaxpr, should: Sequence[bool]) -> Jaxpr:
        return _discharge.discharge_state(jaxpr, should_discharge=list(should))

    return rule(DischargeContext(in_avals, should, discharge), *args, **params)


def written_inputs(jaxpr: Jaxpr) -> list[bool]:
    """Which inputs of a jaxpr are Refs that it writes to."""
    effects = positional_effects(jaxpr)
    written = {e.input for e in effects if isinstance(e, (WriteEffect, AccumEffect))}
    return [i in written for i in range(len(jaxpr.in_avals))]


# ---------------------------------------------------------------- types

mapped_leading_aval = core.mapped_leading_aval
unmapped_leading_aval = core.unmapped_leading_aval
JaxprTypeError = core.JaxprTypeError
types_match = core.typematch
types_compatible = core.typecompat


def as_array(x: Any) -> Any:
    """A NumPy array or a Python number as an array of JAX; a high-level value as it is."""
    return x if isinstance(x, jax.Array) or jax.typeof(x).is_high else jax.numpy.asarray(x)


def row_of(x: Any, position: int, length: int) -> Any:
    """A row along the leading axis of an array, or of those that a high-level value is made of."""
    aval = jax.typeof(x)
    if not aval.is_high:
        return jax.lax.index_in_dim(x, position, keepdims=False)
    row_aval: Any = mapped_leading_aval(length, aval)
    return row_aval.raise_val(*(part[position] for part in aval.lower_val(x)))


def stack_rows(*rows: Any) -> Any:
    """Values of one type as one of it with a leading axis."""
    aval = jax.typeof(rows[0])
    if not aval.is_high:
        arrays = [jax.lax.expand_dims(jax.numpy.asarray(row), (0,)) for row in rows]
        return jax.lax.concatenate(arrays, 0)
    parts = zip(*(aval.lower_val(row) for row in rows), strict=True)
    stacked: Any = unmapped_leading_aval(len(rows), aval)
    return stacked.raise_val(*(stack_rows(*part) for part in parts))


def is_ref(aval: Aval) -> bool:
    """Whether a type is that of a mutable array."""
    return isinstance(aval, AbstractRef)


def positional_effects(jaxpr: Jaxpr) -> Any:
    """The effects of a jaxpr with inputs named by position, as abstract evaluation wants them."""
    return core.positional_effects(jaxpr)


def renumber_effects(effects: Any, new_position: Callable[[int], int]) -> set[Any]:
    """Effects on inputs named by position, with the positions changed."""
    return {e.replace(new_position(e.input)) if is_effect_on_input(e) else e for e in effects}


def is_effect_on_input(effect: Any) -> bool:
    """Whether an effect is that of reading or writing a Ref."""
    return isinstance(effect, jax_effects.JaxprInputEffect)


def callback_effects(effects: Any) -> list[Any]:
    """The effects of `io_callback`, which changes the world outside and must run exactly once."""
    kinds = (_callback._IOEffect, _callback._OrderedIOEffect)
    return [e for e in effects if e in kinds]


def is_debugging(effect: Any) -> bool:
    """Whether an effect is that of `jax.debug`: it may be dropped, repeated and reordered."""
    return isinstance(effect, (_debugging.DebugEffect, _debugging.OrderedDebugEffect))


def may_be_repeated(effect: Any) -> bool:
    """Whether steps with an effect may run again: those of `jax.debug`, collectives, our own."""
    return is_debugging(effect) or isinstance(effect, (core.NamedAxisEffect, *_own_effects))


def describe_effect(effect: Any) -> str:
    """An effect in words: JAX's text for those on Refs names variables that nobody has seen."""
    kinds = ((WriteEffect, "a write to a Ref"), (AccumEffect, "an addition to a Ref"))
    words = [text for kind, text in kinds if isinstance(effect, kind)]
    if words:
        return words[0]
    return "a read of a Ref" if is_effect_on_input(effect) else str(effect)


def without_debugging(jaxpr: Any) -> Any:
    """A jaxpr, open or closed, without the callbacks of `jax.debug` in it, also deep inside."""
    if not any(map(is_debugging, jaxpr.effects)):
        return jaxpr
    inner = open_jaxpr(jaxpr)

    def strip(eqn: JaxprEqn) -> JaxprEqn:
        params = map_parameters(
            lambda value: without_debugging(value) if is_jaxpr(value) else value, eqn.params
        )
        return eqn.replace(params=params, effects=_without_debug_effects(eqn.effects))

    eqns = [
        strip(eqn) for eqn in inner.eqns if eqn.outvars or not all(map(is_debugging, eqn.effects))
    ]
    new_inner = inner.replace(eqns=eqns, effects=_without_debug_effects(inner.effects))
    return new_inner if inner is jaxpr else jaxpr.replace(jaxpr=new_inner)


def _without_debug_effects(effects: Any) -> set[Any]:
    return {effect for effect in effects if not is_debugging(effect)}


Effect = jax_effects.Effect


_own_effects: list[type] = []


def allow_effect_inside_loops(kind: type) -> None:
    """Let loops and branches have an effect of this kind, our own, inside."""
    _own_effects.append(kind)
    jax_effects.control_flow_allowed_effects.add_type(kind)


def forbidden_effects(effects: Any) -> list[Any]:
    """The effects that no loop body may have."""
    return jax_effects.control_flow_allowed_effects.filter_not_in(effects)


def ordered_effects(effects: Any) -> list[Any]:
    """The effects whose order the lowering keeps with tokens."""
    return jax_effects.ordered_effects.filter_in(effects)


def is_symbolic_dimension(value: Any) -> bool:
    """Whether a value is a dimension of unknown size (jax.export)."""
    return core.is_symbolic_dim(value)


def at_least_one(dimension: Any) -> Any:
    """A dimension, or 1 if that is larger; the dimension itself where it is surely positive."""
    return core.max_dim(dimension, 1)


def at_least_zero(dimension: Any) -> Any:
    """A difference of dimensions, or 0 if that is larger."""
    return core.max_dim(dimension, 0)


def symbolic_value(dimension: Any) -> Any:
    """A symbolic dimension as an integer array."""
    return core.dimension_as_value(dimension)


def concrete_int(value: Any, what: str) -> Any:
    """`value`, which must not be traced."""
    return core.concrete_or_error(None, value, what)


def is_concrete(value: Any) -> bool:
    """Whether a value is known while tracing."""
    return core.is_concrete(value)


# ---------------------------------------------------------------- configuration and source lines

api_boundary = traceback_util.api_boundary


def register_package(folder: str) -> None:
    """Hide this package's frames from JAX's tracebacks and source lines."""
    source_info_util.register_exclusion(folder)
    traceback_util.register_exclusion(folder)


def disable_jit() -> bool:
    """Whether `jax.disable_jit` is on."""
    return config.disable_jit.value


def check_mutable_arguments(debug: Any, args: Sequence[Any]) -> None:
    """Refuse boxes, and Refs that were transformed (`ref.at[...]`) or that occur twice."""
    api_util.check_no_transformed_refs_args(lambda: debug, list(args))
    avals = [jax.typeof(x) for x in args] if _HAS_BOXES or config.mutable_array_checks.value else []
    if _HAS_BOXES and any(boxes_among(avals)):
        raise NotImplementedError(
            "A loop takes no hijax box in its carry or xs. Let the body close over it, or read it "
            "before the loop, carry what it holds, and set it afterwards."
        )
    if config.mutable_array_checks.value:
        api_util.check_no_aliased_ref_args(lambda: debug, avals, list(args))


def check_closed_over_refs(debug: Any, consts: Sequence[Any], args: Sequence[Any]) -> None:
    """Refuse a Ref that the body closes over and also gets as an argument."""
    if config.mutable_array_checks.value:
        api_util._check_no_aliased_closed_over_refs(debug, list(consts), list(args))


# ---------------------------------------------------------------- batching

move_axis = batching.moveaxis


def batch_jaxpr(
    jaxpr: Jaxpr, axis: Any, in_axes: Sequence[int | None], batched_out: Sequence[bool]
) -> tuple[Jaxpr, list[bool]]:
    """Batch a jaxpr; outputs marked in `batched_out` are batched, dependent on it or not."""
    out_axes = [0 if b else batching.zero_if_mapped for b in batched_out]
    jaxpr = _on_mesh_of_batch(jaxpr, axis, in_axes)
    batched, is_batched = batching.batch_jaxpr_axes(jaxpr, axis, list(in_axes), out_axes)
    return batched, list(is_batched)


def batch_jaxpr_to_axes(
    jaxpr: Jaxpr, axis: Any, in_axes: Sequence[int | None], out_axes: Sequence[int | None]
) -> Jaxpr:
    """Batch a jaxpr with a chosen axis for each output, and note where the axes are."""
    on_mesh = _on_mesh_of_batch(jaxpr, axis, in_axes)
    batched, _ = batching.batch_jaxpr_axes(on_mesh, axis, list(in_axes), list(out_axes))
    this_time = Batching(tuple(in_axes), tuple(out_axes), mixes_lanes(jaxpr, axis))
    _batchings[batched] = (*batchings(jaxpr), this_time)
    return batched


def mixes_lanes(jaxpr: Jaxpr, axis: Any) -> bool:
    """Whether a jaxpr has a collective over the axis that `vmap` gives it."""
    return axis.name in collective_axes(jaxpr)


def collective_axes(jaxpr: Jaxpr) -> set[Any]:
    """The named axes that a jaxpr has collectives over."""
    return {e.name for e in jaxpr.effects if isinstance(e, core.NamedAxisEffect)}


class Batching(NamedTuple):
    """Where `vmap` gave the inputs and outputs of a jaxpr their axis; None where it gave none."""

    in_axes: tuple[int | None, ...]
    out_axes: tuple[int | None, ...]
    mixes_lanes: bool  # a collective over the axis


_batchings: WeakKeyDictionary[Jaxpr, tuple[Batching, ...]] = WeakKeyDictionary()


def batchings(jaxpr: Jaxpr) -> tuple[Batching, ...]:
    """How a jaxpr was batched, first to last, as far as it is known."""
    return _batchings.get(jaxpr, ())


def _batched_alike(
    new: Jaxpr, old: Jaxpr, inputs: Sequence[int | None], outputs: Sequence[int | None]
) -> Jaxpr:
    """Note which inputs and outputs of another a jaxpr has, by position; None is a new one."""

    def pick(axes: Sequence[int | None], positions: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(None if i is None else axes[i] for i in positions)

    if batchings(old):
        _batchings[new] = tuple(
            Batching(pick(b.in_axes, inputs), pick(b.out_axes, outputs), b.mixes_lanes)
            for b in batchings(old)
        )
    return new


def broadcast_along(x: Any, axis: Any, position: int) -> Any:
    """Copy an unbatched value along the batch axis."""
    aval = jax.typeof(x)
    if not _must_be_put_on_mesh(aval, axis):
        return batching.broadcast(x, axis.size, position, axis.explicit_mesh_axis)
    shape, dims = list(aval.shape), list(range(aval.ndim))
    shape.insert(position, axis.size)
    spec = [None] * aval.ndim
    spec.insert(position, axis.explicit_mesh_axis)
    sharding = jax.sharding.NamedSharding(
        jax.sharding.get_abstract_mesh(), jax.sharding.PartitionSpec(*spec)
    )
    dims = [d if d < position else d + 1 for d in dims]
    return jax.lax.broadcast_in_dim(x, shape, dims, out_sharding=sharding)


def _must_be_put_on_mesh(aval: Aval, axis: Any) -> bool:
    """Whether a type has met no mesh (a literal's), though its batch axis is sharded explicitly."""
    if axis.explicit_mesh_axis is None or not isinstance(aval, core.ShapedArray):
        return False
    return aval.sharding.mesh.empty and not jax.sharding.get_abstract_mesh().empty


def _on_mesh_of_batch(jaxpr: Jaxpr, axis: Any, in_axes: Sequence[int | None]) -> Jaxpr:
    """Trace a jaxpr again with types on the mesh where it is to be batched along an axis of it.

    JAX cannot shard a type that has met no mesh, such as that of a literal zero in a carry.
    """
    avals = [
        aval.update(sharding=aval.sharding.update(mesh=jax.sharding.get_abstract_mesh()))
        if in_axis is not None and _must_be_put_on_mesh(aval, axis)
        else aval
        for aval, in_axis in zip(jaxpr.in_avals, in_axes, strict=True)
    ]
    if all(new is old for new, old in zip(avals, jaxpr.in_avals, strict=True)):
        return jaxpr
    return trace_closed(core.jaxpr_as_fun(jaxpr), avals, without_names(jaxpr))


# ---------------------------------------------------------------- lowering

lower_function = mlir.lower_fun
register_lowering = mlir.register_lowering


apply_primitive = dispatch.apply_primitive


class _WithRepeatedInputs(NamedTuple):
    """Stands for a primitive whose input `i` is argument `positions[i]`."""

    primitive: Primitive
    positions: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.primitive.name

    def bind(self, *args: Any, **params: Any) -> Any:
        return self.primitive.bind(*(args[i] for i in self.positions), **params)


def apply_primitive_to_refs(primitive: Primitive, *args: Any, **params: Any) -> Any:
    """`apply_primitive` where a Ref may occur twice among the arguments, which jit refuses."""
    first: dict[int, int] = {}
    positions = tuple(first.setdefault(id(x), len(first)) for x in args)
    distinct = {id(x): x for x in args}.values()
    return dispatch.apply_primitive(_WithRepeatedInputs(primitive, positions), *distinct, **params)


def uninitialised(prefix: tuple[Any, ...], aval: Aval) -> Any:
    """A buffer of shape `(*prefix, *aval.shape)` whose contents do not matter yet."""
    spec = aval.sharding.spec.update(
        partitions=(*(None for _ in prefix), *aval.sharding.spec.partitions)
    )
    sharding = aval.sharding.update(spec=spec)
    if sharding.mesh.empty:
        sharding = sharding.update(mesh=jax.sharding.get_abstract_mesh())
    scalar = _empty_scalar(aval.dtype, memory_space=aval.memory_space)
    scalar = core.pvary(scalar, tuple(aval.mat.varying))
    with use_abstract_mesh(sharding.mesh):
        return jax.lax.broadcast(scalar, (*prefix, *aval.shape), out_sharding=sharding)


def mesh_of(x: Any) -> Any:
    """A context in which operations see the mesh of an array's type."""
    return use_abstract_mesh(jax.typeof(x).sharding.mesh)


class LoweringBlocks:
    """Helpers to lower jaxprs into the regions of a StableHLO operation."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def types(self, avals: Sequence[Aval]) -> list[Any]:
        """The IR types of each aval; a value may be several IR values."""
        return [mlir._aval_to_ir_types(self.ctx.module_context, a) for a in avals]

    def lower(self, jaxpr: Jaxpr, name_stack: Any, tokens: Any, args: Sequence[Any]) -> Any:
        """Inline a jaxpr here: its results and the tokens afterwards."""
        inner = jaxpr.jaxpr
        consts = mlir.ir_consts(jaxpr.consts, [v.aval for v in inner.constvars])
        return mlir.jaxpr_subcomp(
            self.ctx.module_context,
            inner,
            name_stack,
            tokens,
            consts,
            *args,
            dim_var_values=self.ctx.dim_var_values,
            const_lowering=self.ctx.const_lowering,
            outer_traceback=self.ctx.traceback,
        )

    def with_sharding(self, value: Any, aval: Aval) -> Any:
        """Constrain a result to the sharding that its type carries."""
        return mlir.lower_with_sharding_in_types(self.ctx, value, aval)


def lower_to_kept_call(ctx: Any, *args: Any) -> list[Any]:
    """Lower an identity to a call of a function, which XLA is told not to write out in line."""
    types = [arg.type for arg in args]
    with ir.InsertionPoint.at_block_begin(ctx.module_context.module.body):
        identity = func.FuncOp("in_order", (types, types), visibility="private")
    block = identity.add_entry_block()
    with ir.InsertionPoint(block):
        func.return_(list(block.arguments))
    name = ctx.module_context.symbol_table.insert(identity)
    call = func.CallOp(types, ir.FlatSymbolRefAttr.get(name.value), list(args))
    attributes: dict[str, Any] = {"inlineable": ir.StringAttr.get("false")}
    call.operation.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(attributes)
    return [
        mlir.lower_with_sharding_in_types(ctx, value, aval)
        for value, aval in zip(call.results, ctx.avals_out, strict=True)
    ]


ir_trees = mlir.ir_tree_registry
no_tokens = mlir.TokenSet
token_type = mlir.token_type
hlo_while = hlo.WhileOp
hlo_return = hlo.return_
insertion_point = ir.InsertionPoint


def before_lowering(primitive: Primitive, change: Callable[[dict], dict]) -> None:
    """Change a primitive's parameters before the rule that it has by now lowers it."""
    entry = mlir._lowerings[primitive]

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        return entry.rule(ctx, *args, **change(params))

    mlir.register_lowering(primitive, lower, inline=entry.inline)


PALLAS_CALL = "jax._src.pallas.pallas_call"  # private: the primitive has no public name
PALLAS_MESH_CALL = "jax._src.pallas.mpmd"  # private: nor has that of kernels on many cores
PALLAS_INTERPRETER = "jax._src.pallas.hlo_interpreter"  # private: its rules have no registration
PALLAS_FUSION_TYPES = "jax._src.pallas.fuser.fusible_dtype"  # private: nor have its rules


def register_jaxprs_of_kernels(interpreter: Any, primitive: Primitive, *params: str) -> None:
    """Say which parameters of a primitive are jaxprs that Pallas's interpreter looks into."""
    rule = interpreter.make_hop_rule(primitive, *params)
    interpreter._eval_jaxpr_hop_rules[primitive] = rule


def resolve_fusion_types_like(
    module: Any, primitive: Primitive, like: Primitive, change: Callable[[dict], dict]
) -> None:
    """Let Pallas's fuser replace fusion types in a primitive's jaxprs by its rule for another."""
    rule = module._physicalize_rules[like]

    def resolve(context: Any, *args: Any, **params: Any) -> list[Any]:
        return rule(context, *args, **change(params))

    module._physicalize_rules[primitive] = resolve


# ---------------------------------------------------------------- JAX's own loops


# Since JAX 0.12 a scan's parameters have trees of slots in place of numbers.
_LAX_SCAN_HAS_TREES = "ft_in" in inspect.signature(lax_loops._scan_abstract_eval).parameters


def lax_scan_params(*, num_consts: int, num_carry: int, jaxpr: Jaxpr, **params: Any) -> dict:
    """The parameters of JAX's scan for those of ours."""
    if not _LAX_SCAN_HAS_TREES:
        return dict(params, jaxpr=jaxpr, num_consts=num_consts, num_carry=num_carry)
    num_xs = len(jaxpr.in_avals) - num_consts - num_carry
    num_ys = len(jaxpr.out_avals) - num_carry
    return dict(
        params,
        jaxpr=jaxpr,
        ft_in=_slots(num_consts, num_carry, num_xs),
        ft_out=_slots(num_carry, num_ys),
    )


def _slots(*sizes: int) -> Any:
    slots = getattr(lax_loops, "ft")  # noqa: B009  (the module of trees that the scan is made with)
    return slots.pack(tuple(slots.nones(n) for n in sizes))


_HIGH_PRIMITIVE = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # renamed in 0.12


def is_high_primitive(value: Any) -> bool:
    """Whether a value is a high-level primitive; it is a parameter of the equation it stands in."""
    return isinstance(value, _HIGH_PRIMITIVE)


def expand_high_primitive(primitive: Any) -> Jaxpr:
    """The jaxpr that a high-level primitive is short for."""

    def expand(*args: Any) -> list[Any]:
        outputs = primitive.expand(*primitive.in_tree.unflatten(args))
        return primitive.out_tree.flatten_up_to(outputs)

    debug = api_util.debug_info("expand", primitive.expand, (), {})
    return trace_closed(expand, primitive.in_avals_flat, debug)


# ---------------------------------------------------------------- checkify

# Since JAX 0.12 a program counts its checks; before, each check has a code of its own in a process.
_CHECKS_ARE_COUNTED = hasattr(_checkify, "CheckifyContext")


class CheckedJaxpr(NamedTuple):
    """A jaxpr that also reports the first error of each kind: [*inputs] -> [*error, *outputs].

    `error_tree` makes an error of its leaves. `num_codes` checks are counted from zero.
    """

    jaxpr: Jaxpr
    error_tree: Any
    num_codes: int


@weakref_lru_cache
def add_checks(jaxpr: Jaxpr, enabled: frozenset) -> CheckedJaxpr:
    new_context: Any = getattr(_checkify, "CheckifyContext", None)
    context = new_context() if _CHECKS_ARE_COUNTED else None
    no_error = jax.tree.structure(_checkify.init_error)
    first = [] if context is None else [context]
    checked, tree, _ = _checkify.jaxpr_to_checkify_jaxpr(
        *first, jaxpr, enabled, no_error, *jaxpr.in_avals
    )
    error_tree, _ = tree.children()
    return CheckedJaxpr(checked, error_tree, 0 if context is None else context.current_code)


class Checks:
    """The checks that are on while a program gets them."""

    def __init__(self, enabled: frozenset, context: Any = None) -> None:
        self.enabled, self._context = enabled, context

    def count(self, error: Any, num_codes: int) -> Any:
        """An error of checks that were counted from zero, counted on from where the program is."""
        if self._context is None:
            return error
        start = self._context.current_code
        self._context.advance(num_codes)
        return _checkify.Error(
            error._pred,
            {kind: code + start for kind, code in error._code.items()},
            {code + start: exception for code, exception in error._metadata.items()},
            error._payload,
        )


class ErrorEntry(NamedTuple):
    """The first error of one kind: whether there is one, which check found it, and its values."""

    failed: Any
    code: Any
    payload: Any


def error_entries(error: Any) -> dict[Any, ErrorEntry]:
    """What an error holds for each kind of error that its program may make."""
    return {k: ErrorEntry(error._pred[k], error._code[k], error._payload[k]) for k in error._pred}


def replace_entries(error: Any, entries: dict[Any, ErrorEntry], *, names_of: Any) -> Any:
    """An error of other entries, which come from this one and from the error `names_of`."""
    failed, codes, payloads = (
        {kind: entry[i] for kind, entry in entries.items()} for i in range(len(ErrorEntry._fields))
    )
    return _checkify.Error(failed, codes, {**error._metadata, **names_of._metadata}, payloads)


def register_error_check(primitive: Primitive, rule: Callable) -> None:
    """Register `rule(checks, error, *args, **params)`, which returns an error and outputs."""

    def counted(context: Any, error: Any, enabled: Any, *args: Any, **params: Any) -> Any:
        return rule(Checks(enabled, context), error, *args, **params)

    def uncounted(error: Any, enabled: Any, *args: Any, **params: Any) -> Any:
        return rule(Checks(enabled), error, *args, **params)

    _checkify.error_checks[primitive] = counted if _CHECKS_ARE_COUNTED else uncounted


# ---------------------------------------------------------------- registries of rules

primitive_jvps = ad.primitive_jvps
primitive_linearizations = ad.primitive_linearizations
primitive_transposes = ad.primitive_transposes
accumulating_transposes = ad.fancy_transposes
primitive_batchers = batching.fancy_primitive_batchers
partial_eval_rules = pe.custom_partial_eval_rules
checkpoint_rules = pe.partial_eval_jaxpr_custom_rules
typecheck_rules = core.custom_typechecks
