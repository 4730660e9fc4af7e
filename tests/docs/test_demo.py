"""The Nile demo: what it prints, the picture it draws, and its model against plain NumPy."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from notebooks.nile import local_level
from notebooks.nile.local_level import Variances

ROOT = Path(__file__).resolve().parents[2]
NILE = ROOT / "notebooks" / "nile"


def run_demo(*arguments, python_path=()):
    """Run the demo as a user does, with the repository importable."""
    path = os.pathsep.join([*map(str, python_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(NILE / "demo.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Give one run of the demo and the path of its picture."""
    picture = tmp_path_factory.mktemp("demo") / "new folder" / "nile.png"
    result = run_demo("--output", picture)
    assert result.returncode == 0, result.stderr
    return result, picture


@pytest.fixture
def flows(x64):
    """Give the Nile's flows as float64."""
    return jnp.asarray(read_csv()[1])


def read_csv():
    """Read the years and flows from the committed file."""
    return np.loadtxt(NILE / "nile.csv", delimiter=",", skiprows=1, unpack=True)


def variances(epsilon, eta):
    """Make float64 parameters."""
    return Variances(jnp.float64(epsilon), jnp.float64(eta))


# The textbook recursions, one year at a time in plain Python.


def numpy_filter(parameters, flows):
    """Filter as Durbin and Koopman (2.15) write it: means, variances, innovations with theirs."""
    epsilon, eta = map(float, parameters)
    predicted, predicted_variance = flows[0], epsilon + eta
    means, level_variances, innovations, innovation_variances = [flows[0]], [epsilon], [], []
    for flow in flows[1:]:
        innovations.append(flow - predicted)
        innovation_variances.append(predicted_variance + epsilon)
        gain = predicted_variance / (predicted_variance + epsilon)
        predicted = predicted + gain * (flow - predicted)
        means.append(predicted)
        level_variances.append(predicted_variance * (1 - gain))
        predicted_variance = level_variances[-1] + eta
    return tuple(map(np.array, (means, level_variances, innovations, innovation_variances)))


def exact_posterior(parameters, flows):
    """Solve for all levels at once, with a flat prior: no recursion at all.

    The log density of levels and flows is quadratic in the levels, so the levels given the flows
    are normal with the inverse of that quadratic's matrix as covariance.
    """
    epsilon, eta = map(float, parameters)
    moves = np.diff(np.eye(len(flows)), axis=0)
    covariance = np.linalg.inv(np.eye(len(flows)) / epsilon + moves.T @ moves / eta)
    return covariance @ flows / epsilon, np.diag(covariance)


def table_log_likelihood(parameters, flows):
    """Drop the constants that Durbin and Koopman's table 2.1 leaves out."""
    constants = (len(flows) - 1) / 2 * (np.log(2 * np.pi) + 1)
    return float(local_level.log_likelihood(parameters, flows)) + constants


PARAMETERS = pytest.mark.parametrize(
    ("epsilon", "eta"), [(15099.0, 1469.1), (1.0, 1.0), (20000.0, 1e-3), (0.5, 3e4)]
)


class TestData:
    """The committed numbers."""

    def test_years_follow_one_another(self):
        """The file has the hundred years 1871 to 1970."""
        years, _ = read_csv()
        assert list(range(1871, 1971)) == years.tolist()

    def test_flows_are_the_published_ones(self):
        """The flows have the known total, extremes and first values."""
        _, flows = read_csv()
        assert flows.sum() == 91935
        assert (flows.min(), flows.max()) == (456, 1370)
        assert flows[:5].tolist() == [1120, 1160, 963, 1210, 1160]


class TestModel:
    """The filter, likelihood, fit and smoother."""

    @PARAMETERS
    def test_filter_agrees_with_numpy(self, flows, epsilon, eta):
        """The scan gives what the textbook recursion gives year by year."""
        parameters = variances(epsilon, eta)
        means, level_variances, innovations, innovation_variances = numpy_filter(
            parameters, np.asarray(flows)
        )
        level = local_level.filtered_level(parameters, flows)
        steps = local_level.kalman_filter(parameters, flows)
        np.testing.assert_allclose(level.mean, means, rtol=1e-12)
        np.testing.assert_allclose(level.variance, level_variances, rtol=1e-12)
        np.testing.assert_allclose(steps.innovation, innovations, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(steps.innovation_variance, innovation_variances, rtol=1e-12)

    @pytest.mark.parametrize("years", [1, 2, 37, 100])
    def test_filtered_level_is_the_posterior_of_the_flows_so_far(self, flows, years):
        """Solving for all levels at once gives the filter's last mean and variance."""
        parameters = variances(15099, 1469.1)
        level = local_level.filtered_level(parameters, flows)
        mean, variance = exact_posterior(parameters, np.asarray(flows[:years]))
        np.testing.assert_allclose(level.mean[years - 1], mean[-1], rtol=1e-10)
        np.testing.assert_allclose(level.variance[years - 1], variance[-1], rtol=1e-10)

    @PARAMETERS
    def test_smoother_is_the_posterior_of_all_flows(self, flows, epsilon, eta):
        """Solving for all levels at once gives the smoother's means and variances."""
        parameters = variances(epsilon, eta)
        filtered = local_level.filtered_level(parameters, flows)
        smoothed = local_level.smoothed_level(parameters, filtered)
        mean, variance = exact_posterior(parameters, np.asarray(flows))
        np.testing.assert_allclose(smoothed.mean, mean, rtol=1e-6)
        np.testing.assert_allclose(smoothed.variance, variance, rtol=1e-6)

    def test_smoother_of_one_year_is_the_filter(self, flows):
        """With a single year there is nothing to go back to."""
        parameters = variances(15099, 1469.1)
        filtered = local_level.filtered_level(parameters, flows[:1])
        assert filtered == local_level.smoothed_level(parameters, filtered)

    @PARAMETERS
    def test_log_likelihood_agrees_with_numpy(self, flows, epsilon, eta):
        """The log-likelihood is the sum of the innovations' normal log densities."""
        parameters = variances(epsilon, eta)
        _, _, innovations, innovation_variances = numpy_filter(parameters, np.asarray(flows))
        densities = np.log(2 * np.pi * innovation_variances) + innovations**2 / innovation_variances
        expected = -densities.sum() / 2
        actual = local_level.log_likelihood(parameters, flows)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)

    def test_gradient_agrees_with_differences(self, flows):
        """Reverse mode through the scan gives the slope that central differences give."""

        def height(log_variances):
            return local_level.log_likelihood(Variances(*jnp.exp(log_variances)), flows)

        point, width = jnp.log(jnp.array([2e4, 1e3])), 1e-5
        moves = width * jnp.eye(2)
        slopes = [(height(point + move) - height(point - move)) / (2 * width) for move in moves]
        np.testing.assert_allclose(jax.grad(height)(point), jnp.stack(slopes), rtol=1e-6)

    def test_fit_gives_the_published_figures(self, flows):
        """The maximum is where Durbin and Koopman and KFAS have it, log-likelihood included."""
        fit = local_level.fit(flows)
        epsilon, eta = map(float, fit.variances)
        assert round(epsilon) == 15099
        assert round(eta / epsilon, 4) == 0.0973
        assert eta == pytest.approx(1469.1, abs=0.1)
        assert float(fit.log_likelihood) == pytest.approx(-632.5456, abs=1e-4)
        assert table_log_likelihood(fit.variances, flows) == pytest.approx(-492.07, abs=5e-3)
        assert 1 <= int(fit.iterations) <= 15

    def test_fit_says_when_it_did_not_converge(self, flows):
        """Too few steps raise an error that gives the gradient instead of a wrong fit."""
        with pytest.raises(ArithmeticError, match=r"after 2 Newton steps the gradient is still \["):
            local_level.fit(flows, max_iterations=2)

    def test_fit_refuses_flows_that_are_no_numbers(self, flows):
        """A NaN among the flows raises instead of giving NaN variances."""
        with pytest.raises(ArithmeticError, match="nan"):
            local_level.fit(flows.at[3].set(jnp.nan))


@pytest.mark.usefixtures("x64")
class TestNewton:
    """The optimiser on functions with a known maximum."""

    def test_climbs_where_the_function_is_not_concave(self):
        """From a start with positive curvature it reaches the maximum, not infinity."""

        def hill(point):
            return -jnp.log1p((point[0] - 1) ** 2 + 4 * (point[1] + 2) ** 2)

        top = local_level.maximise(hill, jnp.array([6.0, 3.0]), 1e-9, 50)
        np.testing.assert_allclose(top.point, [1, -2], atol=1e-8)
        assert 1 < int(top.iterations) < 50

    def test_a_quadratic_takes_one_step(self):
        """Newton's step is exact for a quadratic within reach."""
        top = local_level.maximise(lambda p: -jnp.sum(p**2), jnp.array([1.0, -1.0]), 1e-9, 50)
        np.testing.assert_allclose(top.point, [0, 0], atol=1e-12)
        assert int(top.iterations) == 1

    def test_shorten_keeps_a_step_that_leads_uphill(self):
        """A step whose end is higher is not touched."""
        assert float(local_level.shorten(jnp.log, jnp.float64(1.0), jnp.float64(8.0))) == 8

    def test_shorten_halves_a_step_that_leads_downhill(self):
        """A step over the top is halved until its end is no lower than its start."""
        step = local_level.shorten(lambda p: -jnp.abs(p), jnp.float64(1.0), jnp.float64(-8.0))
        assert float(step) == -2

    def test_shorten_halves_a_step_to_where_the_function_is_nan(self):
        """A step out of the function's domain is halved until it is inside."""
        step = local_level.shorten(
            lambda p: jnp.log(p) - 2 * p, jnp.float64(1.0), jnp.float64(-1.5)
        )
        assert float(step) == -0.75


class TestDemo:
    """The script as a user runs it."""

    def test_prints_the_two_variances(self, demo):
        """Both variances are there as maximised and to the digits that the book shows."""
        output = demo[0].stdout
        assert re.search(r"sigma2_epsilon = +15098\.52 +as published: 15099\b", output)
        assert re.search(r"sigma2_eta += +1469\.18 +as published: 1469\.1\b", output)

    def test_prints_likelihood_and_iterations(self, demo):
        """The log-likelihood and the number of Newton steps are there."""
        match = re.search(r"log-likelihood +(\S+), after (\d+) Newton steps", demo[0].stdout)
        assert match is not None
        assert match[1] == "-632.55"
        assert 1 <= int(match[2]) <= 15

    def test_prints_the_steepest_fall(self, demo):
        """The smoothed level falls most where Cobb found the change, at the turn to 1899."""
        assert "falls most from 1898 to 1899" in demo[0].stdout

    def test_prints_the_message_of_a_broken_body(self, demo):
        """The dtype that drifts gets the lesson's message, whole."""
        message = (
            "scan body function carry input and carry output must have equal types "
            "(e.g. shapes and dtypes of arrays), but they differ:\n\n"
            "The input carry average has type float32[] but the corresponding output carry "
            "component has type float64[], so the dtypes do not match.\n\n"
            "Revise the function so that all output types (e.g. shapes and dtypes) match the "
            "corresponding input types."
        )
        assert message in re.sub(r"(?m)^  ", "", demo[0].stdout)
        assert "CarryTypeError: " in demo[0].stdout

    def test_says_nothing_on_stderr(self, demo):
        """A newcomer sees no warning."""
        assert demo[0].stderr == ""

    def test_draws_a_png(self, demo):
        """The picture whose path is printed is a PNG of a useful size, and not blank."""
        from matplotlib.image import imread

        result, picture = demo
        assert f"Picture: {picture}" in result.stdout
        head = picture.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:24])
        assert width >= 800
        assert height >= 400
        colours = np.unique(imread(picture)[..., :3].reshape(-1, 3), axis=0)
        assert len(colours) > 50

    def test_names_the_extra_where_matplotlib_is_missing(self, tmp_path):
        """Without matplotlib the numbers are printed and the error says what to install."""
        (tmp_path / "matplotlib.py").write_text('raise ModuleNotFoundError("No matplotlib")')
        result = run_demo("--output", tmp_path / "nile.png", python_path=[tmp_path])
        assert result.returncode != 0
        assert "15099" in result.stdout
        assert "pip install 'carryloops[notebooks]'" in result.stderr
