"""What `checkpoints`, `max_steps` and `until` may be, and what is said where they are not."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import loops
from loops.effects import UnsupportedEffectError

ONE = np.float32(1)


def scan(**options):
    """A scan with such arguments."""
    return loops.scan(lambda c, _: (c, None), ONE, None, 3, **options)


def while_loop(**options):
    """A while loop with such arguments."""
    return loops.while_loop(lambda c: c < 3, lambda c: c + 1, ONE, **options)


def fori_loop(**options):
    """A fori_loop with such arguments."""
    return loops.fori_loop(0, 3, lambda _, c: c, ONE, **options)


ALL = {"scan": scan, "while_loop": while_loop, "fori_loop": fori_loop}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [1.5, "3", [3], np.float32(2)])
def test_checkpoints_of_a_wrong_type(name, value):
    """What is no integer is refused by name and value."""
    with pytest.raises(TypeError, match=f"{name}: checkpoints must be an integer or None, got "):
        ALL[name](checkpoints=value)


@pytest.mark.parametrize("name", ["while_loop", "fori_loop"])
@pytest.mark.parametrize("value", [1.5, "3"])
def test_max_steps_of_a_wrong_type(name, value):
    """The same for `max_steps`."""
    with pytest.raises(TypeError, match=f"{name}: max_steps must be an integer or None, got "):
        ALL[name](max_steps=value)


@pytest.mark.parametrize("value", [0, -1, True, 2**31])
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("scan", "checkpoints"),
        *((n, a) for n in ALL if n != "scan" for a in ("checkpoints", "max_steps")),
    ],
)
def test_counts_that_are_none(name, argument, value):
    """Zero, negative numbers, booleans and what does not fit are refused."""
    with pytest.raises(ValueError, match=f"{name}: {argument} must be a positive integer"):
        ALL[name](**{argument: value})


def test_a_traced_max_steps():
    """How many steps a loop may take is known while tracing, or the message says that it must."""
    with pytest.raises(TypeError, match="max_steps"):
        jax.jit(lambda n: while_loop(max_steps=n))(3)


@pytest.mark.parametrize("value", [np.int32(2), np.uint8(2), loops.Checkpoints(2)])
def test_integers_of_any_kind(value):
    """NumPy's integers count too, and so does a `Checkpoints`."""
    assert float(scan(checkpoints=value)[0]) == 1.0
    assert float(while_loop(checkpoints=value)) == 3.0


def test_until_that_is_no_function():
    """A value in the place of a function is refused at once."""
    with pytest.raises(TypeError, match="until must be callable, got bool"):
        scan(until=True)


@pytest.mark.parametrize("answer", [lambda c: c, lambda c: None, lambda c: (c > 1, c > 2)])
def test_until_that_returns_no_boolean(answer):
    """What `until` returns is described like a condition's."""
    with pytest.raises(TypeError, match="until"):
        scan(until=answer)


def test_until_of_several_values():
    """A boolean for each element is no answer."""
    with pytest.raises(TypeError, match="until"):
        loops.scan(lambda c, _: (c, None), jnp.ones(2), None, 3, until=lambda c: c > 3)


def test_carry_errors_are_as_before():
    """A body that changes a type gets the message that it always gets."""
    with pytest.raises(TypeError) as plain:
        loops.scan(lambda c, _: (c.astype(jnp.int32), None), ONE, None, 3)
    with pytest.raises(TypeError) as bounded:
        loops.scan(lambda c, _: (c.astype(jnp.int32), None), ONE, None, 3, checkpoints=2)
    assert str(plain.value).replace("checkpoints=2", "") == str(bounded.value)
    assert type(plain.value) is type(bounded.value)


def noisy(x):
    """A value that Python sees, in order."""
    return io_callback(np.asarray, jax.ShapeDtypeStruct((), np.float32), x)


@pytest.mark.parametrize(
    "run",
    [
        lambda: loops.scan(lambda c, _: (noisy(c), None), ONE, None, 3, checkpoints=2),
        lambda: loops.while_loop(lambda c: c < 3, lambda c: noisy(c) + 1, ONE, max_steps=5),
        lambda: loops.while_loop(lambda c: noisy(c) < 3, lambda c: c + 1, ONE, max_steps=5),
        lambda: loops.scan(lambda c, _: (c, None), ONE, None, 3, until=lambda c: noisy(c) > 3),
    ],
)
def test_effects_that_must_not_be_repeated(run):
    """A step with an `io_callback` would run again on the way back, so it is refused."""
    with pytest.raises(NotImplementedError, match="The way back runs steps again"):
        run()


def counts(ref):
    """A step that counts itself in a Ref."""

    def step(c):
        ref[...] += 1
        return c + 1

    return step


LINE = counts.__code__.co_firstlineno + 4


@pytest.mark.parametrize(
    ("loop", "run"),
    [
        ("scan", lambda f: loops.scan(lambda c, _: (f(c), None), ONE, None, 3, checkpoints=2)),
        ("while_loop", lambda f: loops.while_loop(lambda c: c < 3, f, ONE, max_steps=5)),
        ("fori_loop", lambda f: loops.fori_loop(0, 3, lambda _, c: f(c), ONE, checkpoints=2)),
        (
            "fori_loop",
            lambda f: loops.fori_loop(0, jnp.int32(3) + 0, lambda _, c: f(c), ONE, max_steps=5),
        ),
    ],
)
def test_refs_that_steps_use(loop, run):
    """The message names the loop that was called and the line that uses a Ref, not variables."""
    step = counts(jax.new_ref(jnp.float32(0)))
    with pytest.raises(UnsupportedEffectError) as caught:
        jax.jit(lambda: run(jax.jit(step)))()
    assert str(caught.value) == (
        f"Effects not supported in a `{loop}` with `checkpoints`, `max_steps` or `until`: "
        f"[a read of a Ref, a write to a Ref] at {caught.value.place}. The way back runs steps "
        "again, and these must not run again. Move what has them out of the loop, or leave those "
        "arguments out."
    )
    assert caught.value.effects == ("a read of a Ref", "a write to a Ref")
    place = caught.value.place
    assert place is not None
    assert place[:2] == (__file__, LINE)
    assert copy.copy(caught.value).place == place
    assert isinstance(caught.value, NotImplementedError)


def test_prints_are_not_repeated(capsys):
    """What a step prints is printed once a step, in a gradient too."""

    def step(c, i):
        jax.debug.print("step {i}", i=i)
        return jnp.sin(c), None

    xs = jnp.arange(4, dtype=jnp.int32)
    jax.grad(lambda x: loops.scan(step, x, xs, checkpoints=2)[0])(ONE)
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.split("\n"))[1:] == [f"step {i}" for i in range(4)]


def test_symbolic_length():
    """A scan whose length is symbolic says that it needs to be known."""
    (n,) = jax.export.symbolic_shape("n")
    rows = jax.ShapeDtypeStruct((n,), np.float32)
    run = jax.jit(lambda xs: loops.scan(lambda c, x: (c + x, None), ONE, xs, checkpoints=2)[0])
    with pytest.raises(NotImplementedError, match="known while tracing"):
        jax.export.export(run)(rows)


def test_float_bounds():
    """A bound that is a float is refused as it is without the new arguments."""
    with pytest.raises(TypeError) as plain:
        loops.fori_loop(0, 2.5, lambda _, c: c, ONE)
    with pytest.raises(TypeError) as bounded:
        loops.fori_loop(0, 2.5, lambda _, c: c, ONE, checkpoints=2)
    assert str(plain.value) == str(bounded.value)
