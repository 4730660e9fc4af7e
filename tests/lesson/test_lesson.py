"""The lesson, claim by claim: what the loops ask of a body, and what they say when it is not so.

The lesson is a page about JAX's loops; its texts are what our loops print, word for word. A jaxpr
is compared with the lesson's up to the names of its variables, the types that newer releases
print behind a literal, and parameters that the lesson does not show.
"""

import re

import jax
import jax.numpy as jnp
import pytest

import loops

GROWN = (
    "{name} function carry input and carry output must have equal types "
    "(e.g. shapes and dtypes of arrays), but they differ:\n\n"
    "The input carry {component} has type float32[1] but the corresponding output carry component "
    "has type float32[2], so the shapes do not match.\n\n"
    "Revise the function so that all output types (e.g. shapes and dtypes) "
    "match the corresponding input types."
)
NO_REVERSE = (
    "Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with dynamic "
    "start/stop values. Try using lax.scan, or using fori_loop with static start/stop."
)

SUM_FROM_ZERO = """
{ lambda ; a:f32[4]. let
    b:f32[] = scan[
      jaxpr={ lambda ; c:f32[] d:f32[]. let e:f32[] = add c d in (e,) }
      length=4
      num_carry=1
      num_consts=0
      reverse=False
      unroll=1
    ] 0.0 a
  in (b,) }
"""
STATIC_BOUNDS = """
{ lambda ; a:f32[]. let
    _:i32[] b:f32[] = scan[
      jaxpr={ lambda ; c:i32[] d:f32[]. let
          e:i32[] = add c 1
          f:f32[] = mul d 1.100000023841858
          g:f32[] = add f 1.0
        in (e, g) }
      length=5
      num_carry=2
      num_consts=0
      reverse=False
      unroll=1
    ] 0 a
  in (b,) }
"""
TRACED_BOUND = """
{ lambda ; a:f32[] b:i32[]. let
    _:i32[] _:i32[] c:f32[] = while[
      body_jaxpr={ lambda ; d:i32[] e:i32[] f:f32[]. let
          g:i32[] = add d 1
          h:f32[] = mul f 1.100000023841858
          i:f32[] = add h 1.0
        in (g, e, i) }
      body_nconsts=0
      cond_jaxpr={ lambda ; j:i32[] k:i32[] l:f32[]. let
          m:bool[] = lt j k
        in (m,) }
      cond_nconsts=0
    ] 0 b a
  in (c,) }
"""


def in_the_lessons_form(text, like):
    """The jaxpr's text with the parameters of `like`, its own literals, and variables renamed."""
    flat = " ".join(text.split())
    flat = re.sub(r"(?<=\d):\w+\[\]", "", flat)
    shown = "|".join(re.findall(r"(\w+)=", like))
    flat = re.sub(rf" (?!(?:{shown})=)\w+=(?:(?! \w+=| \] ).)*", "", flat)
    variables = dict.fromkeys(re.findall(r"\b([a-z]):", flat))
    names = {name: chr(ord("a") + n) for n, name in enumerate(variables)}
    return re.sub(r"\b[a-z]\b", lambda found: names.get(found[0], found[0]), flat)


def assert_jaxpr(expected, jaxpr):
    """The jaxpr reads as the lesson's does."""
    assert in_the_lessons_form(expected, expected) == in_the_lessons_form(str(jaxpr), expected)


def message(kind, call, *args):
    """The text of the error that the call raises."""
    with pytest.raises(kind) as raised:
        call(*args)
    return str(raised.value)


def grow(c):
    """The carry, one longer than it was."""
    return jnp.concatenate([c, jnp.ones(1)])


def decay(i, c):
    """One step of the recurrence that the lesson's fori_loop runs."""
    return c * 1.1 + 1.0


def decay_n_times(x, n):
    """The recurrence with a bound that is an argument."""
    return loops.fori_loop(0, n, decay, x)


def power_by_while(x):
    """The cube of x: a product collected while a counter stays below three."""
    cond = lambda c: c[0] < 3.0
    body = lambda c: (c[0] + 1.0, c[1] * x)
    return loops.while_loop(cond, body, (0.0, 1.0))[1]


@pytest.fixture
def recorded():
    """A running sum that writes down the type of its carry whenever Python runs it."""

    class Sum:
        def __init__(self):
            self.types = []

        def __call__(self, total, x):
            self.types.append(jax.eval_shape(lambda v: v, total))
            return total + x, None

    return Sum()


class TestOneDefectThreeNames:
    """A carry that grows, handed to each of the three loops."""

    def test_scan(self):
        """scan names itself and the parameter c of the body."""
        call = lambda: loops.scan(lambda c, x: (grow(c), None), jnp.zeros(1), jnp.arange(4.0))

        assert GROWN.format(name="scan body", component="c") == message(TypeError, call)

    def test_while_loop(self):
        """while_loop says the same sentence with its own name in front."""
        call = lambda: loops.while_loop(lambda c: c.sum() < 3.0, grow, jnp.zeros(1))

        assert GROWN.format(name="while_loop body", component="c") == message(TypeError, call)

    def test_fori_loop(self):
        """fori_loop with static bounds speaks as the scan it is; the index is component 0."""
        call = lambda: loops.fori_loop(0, 4, lambda i, c: grow(c), jnp.zeros(1))
        expected = GROWN.format(name="scan body", component="component loop_carry[1]")

        assert expected == message(TypeError, call)

    def test_nothing_runs_before_the_refusal(self):
        """The loop is refused while it is traced: its body has run on no value."""
        ran = []

        def body(c, x):
            jax.debug.callback(lambda: ran.append(True))
            return grow(c), None

        message(TypeError, lambda: loops.scan(body, jnp.zeros(1), jnp.arange(4.0)))
        jax.effects_barrier()

        assert [] == ran

    def test_structure_comes_before_types(self):
        """Of a carry with another structure and another dtype, the structure is what is said."""
        body = lambda c, x: ((c.astype(jnp.int32), c), None)
        text = message(TypeError, lambda: loops.scan(body, jnp.zeros(1), jnp.arange(4.0)))

        assert "pytree structure" in text
        assert "dtypes do not match" not in text


class TestPythonScalarTracesTwice:
    """What a weakly typed init costs, and what it leaves in the jaxpr."""

    def test_weak_init(self, recorded):
        """A plain 0 is traced as a weak int32, promoted, and traced again as float32."""
        jaxpr = jax.make_jaxpr(lambda xs: loops.scan(recorded, 0, xs))(jnp.arange(4.0))

        assert_jaxpr(SUM_FROM_ZERO, jaxpr)
        assert [
            "ShapeDtypeStruct(shape=(), dtype=int32, weak_type=True)",
            "ShapeDtypeStruct(shape=(), dtype=float32)",
        ] == [str(t) for t in recorded.types]

    def test_strong_init(self, recorded):
        """An init that already has the body's type is traced once."""
        loops.scan(recorded, jnp.float32(0.0), jnp.arange(4.0))

        assert 1 == len(recorded.types)

    def test_weak_init_that_needs_no_promotion(self, recorded):
        """A weak init whose dtype the body keeps is traced once too."""
        loops.scan(recorded, 0, jnp.arange(4))

        assert 1 == len(recorded.types)

    def test_while_loop(self):
        """while_loop promotes in the same two passes."""
        types = []

        def body(c):
            types.append(str(jax.typeof(c)))
            return c + jnp.float32(1.0)

        assert 3.0 == loops.while_loop(lambda c: c < 3, body, 0)
        assert 2 == len(types)


class TestLoopThatStopsWhenTheNumbersSaySo:
    """What while_loop asks of its condition, and which derivatives it has."""

    def test_forward_mode(self):
        """A tangent rides along: jvp gives both numbers, weakly typed as they came."""
        assert (
            "(Array(8., dtype=float32, weak_type=True), Array(12., dtype=float32, weak_type=True))"
        ) == str(jax.jvp(power_by_while, (2.0,), (1.0,)))

    def test_reverse_mode(self):
        """Reverse mode raises and names the two ways out."""
        assert NO_REVERSE == message(ValueError, jax.grad(power_by_while), 2.0)

    def test_condition_is_no_scalar(self):
        """A condition that gives a vector is refused before the body is looked at."""
        looked = []

        def body(v):
            looked.append(v)
            return v + 1.0

        text = message(TypeError, lambda: loops.while_loop(lambda v: v < 5.0, body, jnp.ones(3)))

        assert (
            "cond_fun must return a boolean scalar, but got output type(s) [ShapedArray(bool[3])]."
        ) == text
        assert [] == looked


class TestForiLoopPicksItsRoad:
    """Static bounds give a scan, a traced one a while, and the derivatives follow."""

    def test_static_bounds(self):
        """Two Python ints: a scan of five steps, the index as its first carry."""
        jaxpr = jax.make_jaxpr(lambda x: loops.fori_loop(0, 5, decay, x))(jnp.float32(1.0))

        assert_jaxpr(STATIC_BOUNDS, jaxpr)

    def test_traced_bound(self):
        """A traced upper bound: a while that carries index, bound and value in this order."""
        jaxpr = jax.make_jaxpr(decay_n_times)(jnp.float32(1.0), jnp.int32(5))

        assert_jaxpr(TRACED_BOUND, jaxpr)

    def test_gradient_outside_jit(self):
        """A concrete array is an ordinary bound: the scan road, and reverse mode works."""
        assert "1.6105101" == str(jax.grad(decay_n_times)(jnp.float32(1.0), jnp.int32(5)))

    def test_gradient_inside_jit(self):
        """The identical call under jit has a traced bound, and reverse mode raises."""
        gradient = jax.jit(jax.grad(decay_n_times))

        assert NO_REVERSE == message(ValueError, gradient, jnp.float32(1.0), jnp.int32(5))

    def test_the_fix_is_a_static_bound(self):
        """With the bound static the same code has its gradient under jit."""
        gradient = jax.jit(jax.grad(decay_n_times), static_argnums=1)

        assert "1.6105101" == str(gradient(jnp.float32(1.0), 5))


class TestWhatScanNeedsFromXs:
    """Where the length of a scan comes from."""

    def test_leading_axes_disagree(self):
        """The sizes that were found are in the message, in the order of the leaves."""
        xs = (jnp.ones((4, 2)), jnp.ones((3, 2)))
        call = lambda: loops.scan(lambda c, xy: (c + xy[0].sum(), None), 0.0, xs)

        assert "scan got values with different leading axis sizes: 4, 3." == message(
            ValueError, call
        )

    def test_neither_xs_nor_length(self):
        """With no number of steps anywhere in the call there is no loop."""
        call = lambda: loops.scan(lambda c, x: (c + x, None), 0.0, None)

        assert "scan got no values to scan over and `length` not provided." == message(
            ValueError, call
        )

    def test_length_alone(self):
        """A pure iteration: the body gets None, and ys has a row for each step."""
        assert (
            "(Array(3., dtype=float32, weak_type=True), "
            "Array([0., 1., 2.], dtype=float32, weak_type=True))"
        ) == str(loops.scan(lambda c, _: (c + 1.0, c), 0.0, None, length=3))


class TestCheckYourself:
    """The questions at the end of the lesson, and their answers."""

    def test_smallest_fix_for_a_drifting_dtype(self, recorded):
        """int32 in and float32 out raises; a float32 init mends it with one trace."""
        xs = jnp.ones(4, jnp.float32)
        drift = lambda total, x: (total.astype(jnp.float32) + x, None)

        assert (
            "The input carry total has type int32[] but the corresponding output carry component "
            "has type float32[], so the dtypes do not match."
        ) in message(TypeError, lambda: loops.scan(drift, jnp.int32(0), xs))
        assert 4.0 == loops.scan(recorded, jnp.float32(0.0), xs)[0]
        assert 1 == len(recorded.types)

    def test_a_plain_zero_instead(self, recorded):
        """A Python 0 raises nothing: it is promoted, and the body traced a second time."""
        assert 4.0 == loops.scan(recorded, 0, jnp.ones(4, jnp.float32))[0]
        assert [jnp.int32, jnp.float32] == [t.dtype for t in recorded.types]

    def test_print_in_a_body(self, capsys):
        """A print in a body of four steps fires twice: once for each trace, not for each step."""

        def body(total, x):
            print("step")  # noqa: T201
            return total + x, None

        loops.scan(body, 0, jnp.arange(4.0))

        assert ["step", "step"] == capsys.readouterr().out.split()

    def test_which_road_the_gradient_took(self):
        """Outside jit the bound is concrete and the jaxpr has a scan, inside it has a while."""
        bound = jnp.int32(5)
        outside = jax.make_jaxpr(lambda x: decay_n_times(x, bound))(jnp.float32(1.0))
        inside = jax.make_jaxpr(jax.jit(decay_n_times))(jnp.float32(1.0), bound)

        assert " scan[" in str(outside)
        assert " while[" in str(inside)
