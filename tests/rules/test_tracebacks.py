"""Where an error, an equation and a leaked tracer say that they come from: the user's function."""

import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import loops
from tests.helpers.equations import equations

OURS = str(Path(loops.__file__).parent)
HERE = __file__


def broken(c):
    """A body with a mistake."""
    return c + jnp.ones(3)[undefined]  # noqa: F821  # pyrefly: ignore[unknown-name]


CALLS = {
    "scan": lambda: loops.scan(lambda c, _: (broken(c), None), 0.0, length=3),
    "fori_loop": lambda: loops.fori_loop(0, 3, lambda i, c: broken(c), 0.0),
    "while_loop": lambda: loops.while_loop(lambda c: broken(c) < 1, lambda c: c, 0.0),
    "map": lambda: loops.map(broken, jnp.arange(3.0)),
    "jit": jax.jit(lambda: loops.fori_loop(0, 3, lambda i, c: broken(c), 0.0)),
    "grad": lambda: jax.grad(lambda x: loops.scan(lambda c, _: (broken(c), None), x, length=3)[0])(
        0.0
    ),
    "until": lambda: loops.scan(lambda c, _: (broken(c), 0), 0.0, length=3, until=lambda c: c > 1),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def filtering(request):
    """Sets how JAX filters tracebacks, and gives the setting back."""
    before = getattr(jax.config, "jax_traceback_filtering")  # noqa: B009, no attribute for types
    jax.config.update("jax_traceback_filtering", request.param)
    yield request.param
    jax.config.update("jax_traceback_filtering", before)


def shown_frames(error):
    """The file and function of each frame that is not marked as hidden."""
    frames, tb = [], error.__traceback__
    while tb is not None:
        if "__tracebackhide__" not in tb.tb_frame.f_locals:
            frames.append((tb.tb_frame.f_code.co_filename, tb.tb_frame.f_code.co_name))
        tb = tb.tb_next
    return frames


@calls
@pytest.mark.parametrize(
    "filtering", ["tracebackhide", "remove_frames", "quiet_remove_frames"], indirect=True
)
def test_an_error_in_a_body_shows_the_users_frames(filtering, call):
    """None of ours and none of JAX's is between the user's call and the user's mistake."""
    with pytest.raises(NameError, match="undefined") as error:
        call()
    files, names = zip(*shown_frames(error.value), strict=True)

    assert names[-1] == "broken"
    assert not [file for file in files if file.startswith(OURS)]
    if filtering != "tracebackhide":
        assert set(files) == {HERE}


@calls
@pytest.mark.parametrize("filtering", ["off"], indirect=True)
def test_without_filtering_all_frames_are_shown(filtering, call):
    """Then ours are there too, for those who look for a mistake of ours."""
    with pytest.raises(NameError) as error:
        call()
    assert [file for file, _ in shown_frames(error.value) if file.startswith(OURS)]


def here(marker):
    """The number of the line in this file that ends with a comment."""
    lines = Path(HERE).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return number


def program(x):
    """A loop whose lines are known."""

    def body_of_mine(c, row):
        return jnp.sin(c) * row, c  # the body's line

    return loops.scan(body_of_mine, x, jnp.arange(3.0))  # the loop's line


def user_lines(fun, name):
    """The lines in this file that equations of a primitive come from."""
    found = set()
    for eqn in equations(fun, 1.0, name=name):
        frames = eqn.source_info.traceback.frames
        found.add(next(frame.line_num for frame in frames if frame.file_name == HERE))
    return found


def test_the_source_lines_of_equations():
    """A loop's equation has the line of the call, also transposed; those in it have the body's."""
    for fun in (
        program,
        jax.grad(lambda x: program(x)[0]),
        jax.vmap(program, axis_size=2, in_axes=None),
    ):
        assert user_lines(fun, "scan") == {here("the loop's line")}
        assert user_lines(fun, "sin") == {here("the body's line")}


def test_the_locations_of_the_compiled_program():
    """No line of ours stands for an operation of the user's in what is lowered."""
    lowered = jax.jit(jax.grad(lambda x: program(x)[0])).lower(1.0).as_text(debug_info=True)
    line = here("the body's line")
    assert f'"{HERE}":{line}' in lowered
    assert OURS + "/" not in lowered


def test_name_stacks():
    """Scopes around and inside a loop are in the names of the compiled operations."""

    @jax.jit
    def run(x):
        with jax.named_scope("outside"):
            return loops.while_loop(
                lambda c: c < 3, jax.named_call(lambda c: jnp.sin(c) + 1, name="inside"), x
            )

    text = str(run.lower(1.0).compile().as_text())
    assert "jit(run)/outside/while/body/inside/sin" in text
    assert "jit(run)/outside/while/cond/lt" in text


def test_name_stacks_of_lanes():
    """Where each lane has its own predicate, the scopes are still in the names."""

    @jax.vmap
    def lanes(x):
        with jax.named_scope("outside"):
            condition = jax.named_call(lambda c: c < 3, name="test")
            body = jax.named_call(lambda c: jnp.sin(c) + 1, name="inside")
            return loops.while_loop(condition, body, x)

    text = str(jax.jit(lanes).lower(jnp.arange(2.0)).as_text("hlo", debug_info=True))
    assert "vmap(outside)/while/body/inside/sin" in text
    assert "vmap(outside)/while/cond/test/lt" in text
    assert "vmap(outside)/while/body/body_pred/test/lt" in text


@pytest.mark.parametrize("loop", ["scan", "fori_loop", "while_loop"])
def test_debug_info(loop):
    """The jaxpr of a body knows the user's function and the names of its arguments."""

    def my_body(*args):
        return args if loop == "scan" else args[-1] + 1

    run = {
        "scan": lambda: loops.scan(my_body, 1, jnp.arange(3)),
        "fori_loop": lambda: loops.fori_loop(0, 3, my_body, 1),
        "while_loop": lambda: loops.while_loop(lambda _: False, my_body, 1),
    }[loop]
    (eqn,) = [e for e in jax.make_jaxpr(run)().eqns if e.primitive.name in ("scan", "while")]
    jaxpr = eqn.params.get("jaxpr") or eqn.params["body_jaxpr"]
    info = getattr(jaxpr, "jaxpr", jaxpr).debug_info

    assert info.func_src_info.startswith("my_body at ")
    assert HERE in info.func_src_info


KEPT = []


def leaks(c):
    """A body whose carry is kept."""
    KEPT.append(c)
    return c


def branches(c):
    """A body that asks for a value."""
    return c + 1 if c > 0 else c


NAMED = {
    "scan": lambda body: loops.scan(body_and_none(body), 1.0, length=2),
    "fori_loop": lambda body: loops.fori_loop(0, 2, lambda i, c: body(c), 1.0),
    "while_loop": lambda body: loops.while_loop(lambda c: c < 0, body, 1.0),
}


def body_and_none(body):
    """A scan's body of a function of the carry, that has its name."""

    def run(c, _):
        return body(c), None

    run.__name__ = run.__qualname__ = body.__name__
    return run


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_a_leaked_tracer_names_the_body(loop):
    """What uses it afterwards is told in which function it was made."""
    NAMED[loop](leaks)
    with pytest.raises(jax.errors.UnexpectedTracerError, match=r"(leaks|run) at .*test_tracebacks"):
        KEPT[-1] + 1


@pytest.mark.parametrize("loop", NAMED)
def test_a_concretization_error_names_the_body(loop):
    """A branch on a value names the function, its line and the argument."""
    with pytest.raises(jax.errors.TracerBoolConversionError, match="the argument c") as error:
        NAMED[loop](branches)
    assert "test_tracebacks.py" in str(error.value)
    last = traceback.extract_tb(error.value.__traceback__)[-1]
    assert (last.filename, last.name) == (HERE, "branches")
