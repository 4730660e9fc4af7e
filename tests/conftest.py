"""Settings that every test runs under, and the fixtures that all folders share."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

from tests.helpers.implementations import IMPLEMENTATIONS, Implementation

# A test that relies on a silent promotion would pass here and fail in a strict project.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Simulated devices for tests of sharded loops. Measured: no cost to tests that use one device.
jax.config.update("jax_num_cpu_devices", 8)

# `ci` runs the same few examples each time, so that a failure is the change's and not the day's.
# `dev` searches: HYPOTHESIS_PROFILE=dev make test
# No deadline in either: the first example pays for compiling.
# No explaining of failures either: it takes time, and `hypothesis.find` then returns what it tried
# last and not the smallest example.
phases = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
always = hypothesis.settings(phases=phases, deadline=None)
hypothesis.settings.register_profile("ci", always, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("dev", always, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.name)
def impl(request: pytest.FixtureRequest) -> Implementation:
    """Each implementation of the loops in turn: ours, JAX's, and plain Python."""
    return request.param


@pytest.fixture
def x64():
    """Runs the test with 64-bit types, and gives the setting back afterwards."""
    with jax.enable_x64(True):
        yield
