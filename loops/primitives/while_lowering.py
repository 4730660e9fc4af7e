"""Lowering of `while` to one StableHLO `while`.

The operation carries the tokens of ordered effects, the constants of both regions and the carry.
Two kinds of loop are rewritten first, jaxpr to jaxpr, so that the lowering itself has one case:

* an array of predicates becomes a scalar one (`loops.passes.freeze_lanes`);
* a condition with effects moves into the body (`loops.passes.rotate`): a region that computes a
  predicate can hand on no token, and XLA may drop a callback in it.
"""

from __future__ import annotations

from typing import Any

from loops import _jax
from loops.passes.freeze_lanes import freeze_finished_lanes
from loops.passes.read_before_write import read_before_write
from loops.passes.rotate import move_condition_into_body
from loops.primitives.layout import split_while_inputs
from loops.primitives.while_loop import while_p


def lower_while(ctx: Any, *args: Any, **params: Any) -> list[Any]:
    """Lower any `while` equation."""
    if params["cond_jaxpr"].out_avals[0].shape:
        return _relower(ctx, freeze_finished_lanes, args, params)
    if params["cond_jaxpr"].effects:
        return _relower(ctx, move_condition_into_body, args, params)
    params = dict(params, body_jaxpr=read_before_write(params["body_jaxpr"]))
    return _lower_plain_while(ctx, *args, **params)


_jax.register_lowering(while_p, lower_while)


def _relower(ctx: Any, rewrite: Any, args: Any, params: dict[str, Any]) -> list[Any]:
    """Lower the function that `rewrite` makes of the loop."""
    fun = _jax.lower_function(lambda *xs: rewrite(*xs, **params), multiple_results=True)
    return fun(ctx, *args)


def _lower_plain_while(
    ctx: Any,
    *args: Any,
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> list[Any]:
    """A scalar predicate without effects."""
    blocks = _jax.LoweringBlocks(ctx)
    body_effects = _jax.ordered_effects(body_jaxpr.effects)
    tokens = [ctx.tokens_in.get(effect) for effect in body_effects]
    types = [*(_jax.token_type() for _ in tokens), *blocks.types(ctx.avals_in)]
    flat_types, tree = _jax.ir_trees.flatten(types)
    loop = _jax.hlo_while(flat_types, _jax.ir_trees.flatten([*tokens, *args])[0])
    name_stack = ctx.name_stack.extend("while")

    cond_block = loop.regions[0].blocks.append(*flat_types)
    with _jax.insertion_point(cond_block):
        state = tree.unflatten(list(cond_block.arguments))[len(tokens) :]
        cond_consts, _, carry = split_while_inputs(state, cond_nconsts, body_nconsts)
        (predicate,), _ = blocks.lower(
            cond_jaxpr, name_stack.extend("cond"), _jax.no_tokens(), [*cond_consts, *carry]
        )
        _jax.hlo_return(_jax.ir_trees.flatten([predicate])[0])

    body_block = loop.regions[1].blocks.append(*flat_types)
    with _jax.insertion_point(body_block):
        state = tree.unflatten(list(body_block.arguments))
        tokens_in = _jax.no_tokens(dict(zip(body_effects, state, strict=False)))
        cond_consts, body_consts, carry = split_while_inputs(
            state[len(tokens) :], cond_nconsts, body_nconsts
        )
        new_carry, tokens_out = blocks.lower(
            body_jaxpr, name_stack.extend("body"), tokens_in, [*body_consts, *carry]
        )
        new_tokens = [tokens_out.get(effect) for effect in body_effects]
        new_state = [*new_tokens, *cond_consts, *body_consts, *new_carry]
        _jax.hlo_return(_jax.ir_trees.flatten(new_state)[0])

    results = tree.unflatten(list(loop.results))
    if tokens:
        ctx.set_tokens_out(_jax.no_tokens(dict(zip(body_effects, results, strict=False))))
    carry = results[len(tokens) + cond_nconsts + body_nconsts :]
    return [blocks.with_sharding(x, aval) for x, aval in zip(carry, ctx.avals_out, strict=True)]
