"""What a refused loop says."""

from typing import Any

import pytest

import checks


def refusal(call) -> Any:
    """The error that a call of a loop raises."""
    with pytest.raises(checks.CarryTypeError) as caught:
        call()
    return caught.value


def code(call):
    """The code that the only mismatch's suggestion says to write."""
    (mismatch,) = refusal(call).mismatches
    return mismatch.suggestion and mismatch.suggestion.code
