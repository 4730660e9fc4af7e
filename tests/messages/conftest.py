"""What the tests of messages share."""

import functools
import math

import pytest

from checks import explanation
from checks.trial import Budget


@pytest.fixture(scope="session", autouse=True)
def _time_to_try():
    """Advice is tried however slow the machine is, so that a test does not depend on its load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explanation, "Budget", functools.partial(Budget, seconds=math.inf))
        yield
