"""The example of loops that end when they are done: its numbers against closed forms."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import loops
from notebooks.dynamic import newton, ode

pytestmark = pytest.mark.usefixtures("x64")

MODES = {"forward": jax.jacfwd, "reverse": jax.jacrev}
TWICE = {
    "forward over reverse": jax.hessian,
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f)),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f)),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
}


def decay(arguments):
    """Solve y' = -k y; the arguments are y0, k and the end."""
    y0, rate, end = arguments
    return ode.solve(lambda t, y, k: -k * y, y0[None], rate, end)[0]


def exact_decay(arguments):
    """The solution is y0 exp(-k t)."""
    y0, rate, end = arguments
    return y0 * np.exp(-rate * end)


def exact_decay_gradient(arguments):
    """Its derivatives by y0, k and t, worked out by hand."""
    y0, rate, end = arguments
    return np.exp(-rate * end) * np.array([1, -end * y0, -rate * y0])


def exact_decay_hessian(arguments):
    """Its second derivatives, worked out by hand."""
    y0, k, t = arguments
    rows = [[0, -t, -k], [-t, t**2 * y0, (k * t - 1) * y0], [-k, (k * t - 1) * y0, k**2 * y0]]
    return np.exp(-k * t) * np.array(rows)


POINT = (1.5, 0.7, 2.0)


def oscillate(arguments):
    """Solve q'' = -w^2 q; the arguments are q0, p0 and w."""
    position, momentum, frequency = arguments

    def field(time, y, w):
        return jnp.stack([y[1], -(w**2) * y[0]])

    return ode.solve(field, jnp.stack([position, momentum]), frequency, jnp.float64(3))


def exact_oscillation(arguments):
    """The solution turns an ellipse: a closed form that JAX can differentiate."""
    position, momentum, w = arguments
    c, s = jnp.cos(3 * w), jnp.sin(3 * w)
    return jnp.stack([position * c + momentum / w * s, momentum * c - position * w * s])


class TestSolver:
    """The adaptive solver and its derivatives."""

    def test_solution(self):
        """The solver is as good as its tolerance says."""
        assert float(decay(jnp.array(POINT))) == pytest.approx(exact_decay(POINT), abs=1e-6)

    @pytest.mark.parametrize("mode", MODES)
    def test_gradient(self, mode):
        """The derivatives by start, parameter and end are those of the closed form."""
        actual = jax.jit(MODES[mode](decay))(jnp.array(POINT))

        np.testing.assert_allclose(actual, exact_decay_gradient(POINT), atol=1e-6)

    @pytest.mark.parametrize("modes", TWICE)
    def test_second_derivatives(self, modes):
        """Both modes over both modes have the closed form's second derivatives.

        The second derivative by the end is that of the last step alone, and of a lower order.
        """
        actual = jax.jit(TWICE[modes](decay))(jnp.array(POINT))

        np.testing.assert_allclose(actual, exact_decay_hessian(POINT), atol=2e-5)

    @pytest.mark.parametrize("mode", MODES)
    def test_jacobian_of_a_system(self, mode):
        """A solution with two components has the Jacobian of the closed form."""
        point = jnp.array([0.3, -1.2, 1.7])

        actual = jax.jit(MODES[mode](oscillate))(point)

        np.testing.assert_allclose(actual, jax.jacfwd(exact_oscillation)(point), atol=2e-6)

    def test_few_checkpoints_give_the_same_gradient(self):
        """Keeping three states changes nothing but the time."""

        def solve(y0, checkpoints):
            field = lambda t, y, k: -k * y
            end = jnp.float64(2)
            return ode.solve(field, y0, 0.7, end, max_steps=500, checkpoints=checkpoints)[0]

        by_three, by_many = (
            jax.jit(jax.grad(solve), static_argnums=1)(jnp.ones(1), k) for k in (3, None)
        )

        np.testing.assert_allclose(by_three, by_many, rtol=1e-14)

    def test_lanes_stop_on_their_own(self):
        """Under vmap each end time has its own number of steps and its own gradient."""
        ends = jnp.array([0.5, 1.0, 4.0])
        points = jnp.stack([jnp.full(3, 1.5), jnp.full(3, 0.7), ends], axis=1)

        actual = jax.jit(jax.vmap(jax.grad(decay)))(points)

        expected = np.stack([exact_decay_gradient((1.5, 0.7, end)) for end in (0.5, 1.0, 4.0)])
        np.testing.assert_allclose(actual, expected, atol=1e-6)

    def test_rows_are_the_steps(self):
        """The scan with `until` ends as the while loop does, and has each step in a row."""
        field, y0, end = (lambda t, y, k: -k * y), jnp.array([1.5]), jnp.float64(2)

        last, rows = ode.solve_with_steps(field, y0, 0.7, end, max_steps=500)

        num_tried = 1 + int(np.argmax(rows.time == end))
        assert last.y == ode.solve(field, y0, 0.7, end)
        assert last.time == end == rows.time[num_tried - 1]
        assert np.all(np.diff(rows.time[:num_tried]) >= 0)
        assert not rows.time[num_tried:].any()
        np.testing.assert_allclose(
            rows.y[:num_tried, 0], exact_decay((1.5, 0.7, rows.time[:num_tried])), atol=1e-6
        )

    def test_order_of_the_formula(self):
        """Half the step makes an error of the third order eight times smaller, locally sixteen."""
        problem = ode.Problem(lambda t, y, k: k * y * jnp.cos(t), 0.9, jnp.float64(1), 1.0)
        state = ode.start(problem, jnp.ones(1))
        errors = [
            abs(ode.attempt(problem, state, jnp.float64(h)).y[0] - np.exp(0.9 * np.sin(h)))
            for h in (0.1, 0.05)
        ]

        assert 14 < float(errors[0] / errors[1]) < 18

    def test_a_refused_step_is_tried_again(self):
        """A problem that changes suddenly is solved in spite of a first step that is too long."""
        field = lambda t, y, k: -k * (y - jnp.cos(t))
        last, rows = ode.solve_with_steps(
            field, jnp.ones(1), 2000.0, jnp.float64(1), tolerance=1e-5, max_steps=2000
        )

        num_tried = 1 + int(np.argmax(rows.time == 1))
        assert int(rows.accepted[0]) == 0
        assert int(last.accepted) < num_tried
        np.testing.assert_allclose(last.y, jnp.cos(1.0), atol=1e-3)

    def test_a_solution_that_ends_before_the_end(self):
        """Where the solution goes to infinity first, the caller is told."""
        with pytest.warns(loops.MaxStepsWarning, match="max_steps=300"):
            y = ode.solve(
                lambda t, y, _: y**2,
                jnp.ones(1),
                None,
                jnp.float64(2),
                tolerance=1e-3,
                max_steps=300,
            )

        assert float(y[0]) > 1e3


def kepler(angle, orbit):
    """What is left of Kepler's equation."""
    mean, eccentricity = orbit
    return angle - eccentricity * jnp.sin(angle) - mean


ORBIT = (0.8, 0.6)


def angle(orbit, guess=3.0):
    """Solve Kepler's equation."""
    return newton.find_root(kepler, jnp.asarray(guess), orbit)


def implicit_derivatives(root, orbit):
    """First and second derivatives of the root, by the implicit function theorem by hand."""
    _, e = orbit
    s, c = np.sin(root), np.cos(root)
    d = 1 - e * c
    first = np.array([1, s]) / d
    mixed = (c - e) / d**3
    return first, np.array([[-e * s / d**3, mixed], [mixed, s * (2 * c - e * (1 + c**2)) / d**3]])


class TestNewton:
    """Newton's method and its derivatives."""

    def test_root(self):
        """The root leaves nothing."""
        assert abs(float(kepler(angle(jnp.array(ORBIT)), ORBIT))) < 1e-15

    @pytest.mark.parametrize("guess", ["far", "the root"])
    @pytest.mark.parametrize("mode", MODES)
    def test_gradient(self, mode, guess):
        """Wherever the loop starts, the derivative is that of the implicit function theorem."""
        root = float(angle(jnp.array(ORBIT)))
        start = root if guess == "the root" else 3.0

        actual = jax.jit(MODES[mode](angle))(jnp.array(ORBIT), start)

        first, _ = implicit_derivatives(root, ORBIT)
        np.testing.assert_allclose(actual, first, rtol=1e-12)

    @pytest.mark.parametrize("modes", TWICE)
    def test_second_derivatives(self, modes):
        """So are the second derivatives, also from a guess that is the root."""
        root = float(angle(jnp.array(ORBIT)))
        _, second = implicit_derivatives(root, ORBIT)

        actual = jax.jit(TWICE[modes](angle))(jnp.array(ORBIT), root)

        np.testing.assert_allclose(actual, second, rtol=1e-11)

    def test_many_orbits_at_once(self):
        """Under vmap each root is found in its own number of steps."""
        orbits = jnp.array([[0.1, 0.05], [0.8, 0.6], [3.0, 0.9]])

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            roots, slopes = jax.jit(jax.vmap(jax.value_and_grad(angle)))(orbits)

        expected = [implicit_derivatives(r, o)[0] for r, o in zip(roots, orbits, strict=True)]
        np.testing.assert_allclose(slopes, np.stack(expected), rtol=1e-12)

    def test_no_root(self):
        """A function without a root is not found one in silence."""
        with pytest.warns(loops.MaxStepsWarning, match="max_steps=50"):
            newton.find_root(lambda x, _: x**2 + 1, jnp.float64(0.3), None)


def test_picture():
    """The picture has a mark for each step and a ring or cross for each derivative."""
    from notebooks.dynamic import picture

    times = np.linspace(0, 1, 5)
    column, table = picture.Curves(times, times), picture.Curves(times, np.ones((5, 2)))

    figure = picture.draw(["a", "b"], column, column, table, table, table)

    left, right = figure.axes
    assert [np.size(line.get_xdata()) for line in left.lines] == [5, 5]
    assert [line.get_marker() for line in right.lines] == ["None", "o", "x"] * 2
    canvas: Any = figure.canvas
    canvas.draw()
    assert len(np.unique(np.asarray(canvas.buffer_rgba())[..., :3])) > 50
