"""Refs as values: state discharge, and gradients that are added to Refs."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas

import loops
from tests.helpers.comparison import assert_same

wraps = pytest.mark.parametrize("wrap", [lambda fun: fun, jax.jit], ids=["eager", "jit"])


@wraps
def test_gradients_that_are_added_to_refs(wrap):
    """A pull-back adds to Refs that the caller gives, once for each argument, also from a nest."""

    def fun(w, xs):
        inner = lambda c, x: loops.fori_loop(0, 2, lambda _, c: jnp.sin(c * w) + x, c)
        return loops.scan(lambda c, x: (inner(c, x), c * x), 1.0, xs)

    @wrap
    def pulled(w, xs):
        out, pull = jax.vjp(fun, w, xs)
        add_to: Any = pull
        sums = jax.new_ref(jnp.float32(10.0)), jax.new_ref(jnp.zeros(3))
        add_to.with_refs(*sums)(jax.tree.map(jnp.ones_like, out))
        return [ref[...] for ref in sums]

    w, xs = jnp.float32(2.0), jnp.arange(3.0)
    out, pull = jax.vjp(fun, w, xs)
    for_w, for_xs = pull(jax.tree.map(jnp.ones_like, out))
    assert_same(pulled(w, xs), [10 + for_w, for_xs], weak_types=False)


def sums_of_sines(refs):
    """Loops of both kinds over Refs: rows are replaced by their sines and added up."""
    rows, total = refs

    def body(i, c):
        rows[i] = jnp.sin(rows[i]) + c
        total[...] += rows[i]
        return c + 1

    loops.fori_loop(0, 3, body, jnp.float32(0.0))
    loops.while_loop(lambda c: c < 2, lambda c: total.__setitem__(..., total[...] * 2) or c + 1, 0)


@wraps
def test_state_discharge(wrap):
    """Under `run_state` Refs in loops become values, and nothing else changes."""
    run = lambda x: pallas.run_state(sums_of_sines)((x, jnp.zeros_like(x[0])))

    def as_values(x):
        rows = [jnp.sin(x[i]) + i for i in range(3)]
        return jnp.stack(rows), 4 * sum(rows)

    x = jnp.float32([0.3, 0.7, 1.1])
    assert_same(wrap(run)(x), as_values(x), weak_types=False)


def test_tangents_of_discharged_loops():
    """Forward mode goes through loops over Refs under `run_state`."""
    run = lambda x: pallas.run_state(sums_of_sines)((x, jnp.float32(0.0)))[1]
    x, tangent = jnp.float32([0.3, 0.7, 1.1]), jnp.float32([1.0, 2.0, 3.0])
    assert_same(jax.jvp(run, (x,), (tangent,))[1], 4 * (tangent * jnp.cos(x)).sum())


@jax.custom_vjp
def stashed(ref, x):
    """Its argument, and a backward rule that writes the cotangent into a Ref."""
    return x


def write_cotangent(ref, cotangent):
    """The backward rule; the Ref is its residual."""
    ref[...] = cotangent
    return None, cotangent


stashed.defvjp(lambda ref, x: (x, ref), write_cotangent)

TABLE = jnp.float32([2.0, 3.0, 5.0])


def closed_over(ref, x, wrap):
    """A scan whose body closes over the Ref and over a table."""
    body = wrap(lambda c, i: (stashed(ref, jnp.sin(c)) * TABLE[i], None))
    return loops.scan(body, x, jnp.arange(3))[0]


def scanned_over(refs, x, wrap):
    """A scan over a Ref with a row for each step."""
    body = wrap(lambda c, row: (stashed(row[0], jnp.sin(c)) * TABLE[row[1]], None))
    return loops.scan(body, x, (refs, jnp.arange(3)))[0]


@pytest.mark.parametrize("checks", [False, True], ids=["", "checks"])
@pytest.mark.parametrize("wrap", [lambda fun: fun, jax.checkpoint], ids=["", "checkpoint"])
@pytest.mark.parametrize("wrap_all", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("program", [closed_over, scanned_over])
def test_a_backward_rule_that_writes_a_ref(program, wrap_all, wrap, checks):
    """A Ref may be a residual: it holds the last cotangent on the way back, or one for each row."""
    cotangents, c = [], jnp.float32(0.7)
    values = [c := jnp.sin(c) * factor for factor in TABLE]
    carries, ct = [jnp.float32(0.7), *values[:-1]], jnp.float32(1.0)
    for factor, carry in zip(TABLE[::-1], carries[::-1], strict=True):
        cotangents.insert(0, ct * factor)
        ct = ct * factor * jnp.cos(carry)
    is_row = program is scanned_over
    ref = jax.new_ref(jnp.zeros(3) if is_row else jnp.float32(0.0))

    with jax.enable_checks(checks):
        gradient = jax.grad(wrap_all(lambda ref, x: program(ref, x, wrap)), argnums=1)(
            ref, jnp.float32(0.7)
        )

    assert_same(gradient, ct)
    assert_same(ref[...], jnp.stack(cotangents) if is_row else cotangents[0])
