"""A hijax type and its primitives: pairs of arrays that JAX takes for one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import hijax

Primitive = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # renamed in 0.12


@dataclass(frozen=True)
class Pair:
    """Two arrays of one type."""

    first: Any
    second: Any


@dataclass(frozen=True)
class PairType(hijax.HiType):
    """The type of a pair; a leading axis belongs to both of its arrays."""

    part: Any

    def lo_ty(self):
        """The types of the two arrays."""
        return [self.part, self.part]

    def lower_val(self, hi_val):
        """The two arrays."""
        return [hi_val.first, hi_val.second]

    def raise_val(self, *lo_vals):
        """A pair of two arrays."""
        return Pair(*lo_vals)

    def to_tangent_aval(self):
        """Tangents are pairs of tangents."""
        return PairType(self.part.to_tangent_aval())

    def vspace_zero(self):
        """The pair of zeros."""
        return Pair(*[jnp.zeros(self.part.shape, self.part.dtype)] * 2)

    def vspace_add(self, x, y):
        """The sum of two pairs."""
        (a, b), (c, d) = take_apart(x), take_apart(y)
        return pair(a + c, b + d)

    def dec_rank(self, size, spec):
        """The type of a row."""
        return self if spec is None else PairType(self.part.dec_rank(size, spec))

    def inc_rank(self, size, spec):
        """The type of such pairs, stacked."""
        return self if spec is None else PairType(self.part.inc_rank(size, spec))

    def leading_axis_spec(self):
        """The leading axis of both arrays."""
        return self.part.leading_axis_spec()

    def str_short(self, short_dtypes=False, mesh_axis_types=False):
        """What a jaxpr shows."""
        return f"Pair[{self.part.str_short(short_dtypes)}]"


hijax.register_hitype(Pair, lambda x: PairType(jax.typeof(x.first)))


class MakePair(Primitive):
    """Two arrays -> a pair."""

    def __init__(self, part):
        self.in_avals, self.out_aval, self.params = (part, part), PairType(part), {}
        super().__init__()

    def expand(self, first, second):  # pyrefly: ignore[bad-override]
        """The pair."""
        return Pair(first, second)

    def jvp(self, primals, tangents):
        """Linear in both arrays."""
        return self(*primals), self(*map(hijax.instantiate_zeros, tangents))

    def vjp_fwd(self, nzs_in, *args):
        """Nothing to remember."""
        return self(*args), None

    def vjp_bwd_retval(self, res, outgrad):
        """The cotangent's two arrays."""
        return take_apart(hijax.instantiate_zeros(outgrad))


class TakeApart(Primitive):
    """A pair -> two arrays."""

    def __init__(self, part):
        self.in_avals, self.out_aval, self.params = (PairType(part),), (part, part), {}
        super().__init__()

    def expand(self, x):  # pyrefly: ignore[bad-override]
        """The two arrays."""
        return x.first, x.second

    def jvp(self, primals, tangents):
        """Linear in the pair."""
        return self(*primals), self(*map(hijax.instantiate_zeros, tangents))

    def vjp_fwd(self, nzs_in, *args):
        """Nothing to remember."""
        return self(*args), None

    def vjp_bwd_retval(self, res, outgrad):
        """The pair of both cotangents."""
        return (pair(*map(hijax.instantiate_zeros, outgrad)),)


def pair(first, second):
    """Two arrays of one type as a pair, also while tracing."""
    return MakePair(jax.typeof(first))(first, second)


def take_apart(x):
    """The two arrays of a pair, also while tracing."""
    return TakeApart(jax.typeof(x).part)(x)
