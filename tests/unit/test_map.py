"""What users call `map` with, and what they get.

Tests that take `impl` run on our loops, on JAX's and on plain Python.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.comparison import assert_same, types_of
from tests.helpers.equations import equations, scan_layout, the_equation
from tests.helpers.implementations import JAX, OURS, Implementation

primitives = pytest.mark.parametrize("loops", [OURS, JAX], ids=repr)

ROWS = jnp.arange(10.0, dtype=jnp.float32).reshape(5, 2)


class TestValues:
    """Rows in, rows out."""

    def test_rows(self, impl: Implementation):
        """The function sees one row at a time, and its results are stacked."""
        assert_same(impl.map(lambda x: x.sum(), ROWS), ROWS.sum(1))

    def test_tree(self, impl: Implementation):
        """Rows and results are any trees."""
        fun = lambda x: (x["a"] + x["b"][0], None, [x["a"] > 2])
        got = impl.map(fun, {"a": jnp.int32([1, 2, 3]), "b": (np.array([10, 20, 30], np.int32),)})
        assert_same(got, (jnp.int32([11, 22, 33]), None, [jnp.array([False, False, True])]))

    def test_types(self, impl: Implementation):
        """Results keep their dtype, weak ones included."""
        got = impl.map(lambda x: (2.0, jnp.int8(1), x), jnp.ones(3, jnp.bfloat16))
        want = [((3,), jnp.float32, True), ((3,), jnp.int8, False), ((3,), jnp.bfloat16, False)]
        assert types_of(got) == want

    def test_no_rows(self, impl: Implementation):
        """No rows give no rows, of the right type."""
        got = impl.map(lambda x: (x.sum(), x), jnp.zeros((0, 2), jnp.float32))
        assert types_of(got) == [((0,), jnp.float32, False), ((0, 2), jnp.float32, False)]

    def test_gradient(self, impl: Implementation):
        """Both the rows and what the function closes over have gradients."""
        fun = lambda w, xs: impl.map(lambda x: jnp.sin(x * w), xs).sum()
        plain = lambda w, xs: jnp.sin(xs * w).sum()
        got = jax.grad(fun, (0, 1))(jnp.float32(0.5), ROWS)
        assert_same(got, jax.grad(plain, (0, 1))(jnp.float32(0.5), ROWS))

    def test_rows_of_keys(self, impl: Implementation):
        """Typed PRNG keys are rows like any other."""
        keys = jax.random.split(jax.random.key(0), 3)
        got = impl.map(lambda key: (jax.random.uniform(key), key), keys)
        assert_same(got, (jax.vmap(jax.random.uniform)(keys), keys))

    @primitives
    def test_is_a_scan_without_carry(self, loops: Implementation):
        """A map is one scan that carries nothing."""
        eqn = the_equation(lambda xs: loops.map(jnp.sin, xs), ROWS, name="scan")
        assert scan_layout(eqn) == (0, 0, 1, 1)


class TestBatchSize:
    """Several rows at a time."""

    @pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8, 0, None])
    def test_changes_nothing(self, impl: Implementation, batch_size):
        """With a remainder or without, with one batch or many, the result is the same."""
        fun = lambda x: {"a": x * x.sum(), "b": x > 3.0}
        got = impl.map(fun, ROWS, batch_size=batch_size)
        assert_same(got, JAX.map(fun, ROWS), rtol=1e-6)

    @primitives
    @pytest.mark.parametrize(("batch_size", "length"), [(2, 2), (5, 1), (1, 5)])
    def test_runs_whole_batches_in_a_scan(self, loops: Implementation, batch_size, length):
        """The scan takes as many steps as there are whole batches."""
        fun = lambda xs: loops.map(jnp.sin, xs, batch_size=batch_size)
        assert the_equation(fun, ROWS, name="scan").params["length"] == length

    @primitives
    @pytest.mark.parametrize("batch_size", [0, 8])
    def test_single_batch_needs_no_loop(self, loops: Implementation, batch_size):
        """If all rows fit in a batch, or no size is given, there is no scan."""
        fun = lambda xs: loops.map(jnp.sin, xs, batch_size=batch_size)
        assert equations(fun, ROWS, name="scan") == []

    def test_batch_of_keys(self, impl: Implementation):
        """Typed PRNG keys go in batches too."""
        keys = jax.random.split(jax.random.key(0), 5)
        got = impl.map(lambda key: (jax.random.uniform(key), key), keys, batch_size=2)
        assert_same(got, (jax.vmap(jax.random.uniform)(keys), keys))

    def test_numpy_rows(self, impl: Implementation):
        """Rows may be numpy arrays."""
        got = impl.map(lambda x: 2.0 * x, np.asarray(ROWS), batch_size=2)
        assert_same(got, 2.0 * ROWS)

    def test_no_rows(self, impl: Implementation):
        """No rows are no batch."""
        assert impl.map(jnp.sin, ROWS[:0], batch_size=2).shape == (0, 2)

    def test_gradient(self, impl: Implementation):
        """The gradient is that of the whole."""
        fun = lambda xs: impl.map(jnp.sin, xs, batch_size=2).sum()
        assert_same(jax.grad(fun)(ROWS), jnp.cos(ROWS))


class TestRefusals:
    """What is refused."""

    @primitives
    @pytest.mark.parametrize("batch_size", [None, 2])
    def test_not_callable(self, loops: Implementation, batch_size):
        """A function that cannot be called is refused."""
        with pytest.raises(TypeError, match="callable"):
            loops.map(3, ROWS, batch_size=batch_size)

    @primitives
    @pytest.mark.parametrize("xs", [None, (), {}], ids=repr)
    def test_nothing_to_map(self, loops: Implementation, xs):
        """Without rows there is no number of them."""
        with pytest.raises(ValueError, match="no values to scan over"):
            loops.map(lambda x: 1.0, xs)

    @primitives
    @pytest.mark.parametrize("batch_size", [None, 2])
    def test_numbers_of_rows_disagree(self, loops: Implementation, batch_size):
        """All rows must have the same leading axis."""
        with pytest.raises((ValueError, TypeError)):
            loops.map(lambda x: x[0], (ROWS, ROWS[:4]), batch_size=batch_size)

    @primitives
    def test_negative_batch_size(self, loops: Implementation):
        """A batch of less than nothing is refused."""
        with pytest.raises((ValueError, TypeError)):
            loops.map(jnp.sin, ROWS, batch_size=-1)

    @primitives
    @pytest.mark.parametrize("batch_size", [2.5, 2.0, "2"], ids=repr)
    def test_batch_size_is_no_integer(self, loops: Implementation, batch_size):
        """A batch size that is no integer is refused."""
        with pytest.raises(TypeError):
            loops.map(jnp.sin, ROWS, batch_size=batch_size)
