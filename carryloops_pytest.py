"""The pytest plug-in: the fixture `loop_traces`, and the option `--loops-report`.

It is a module of its own, outside the packages, so that pytest can load it without importing JAX:
a test run that uses neither the fixture nor the option pays nothing for it.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--loops-report`."""
    group = parser.getgroup("carryloops", "loops of carryloops")
    group.addoption(
        "--loops-report",
        action="store_true",
        help="at the end, show each loop that the tests traced: its contract and its cost",
    )


@pytest.fixture
def loop_traces() -> Iterator[Any]:
    """Counts the body traces and the compilations of a test; see `diagnostics.loop_traces`.

    `loop_traces.assert_at_most(traces=1, compilations=2, body=step)` fails where there were more.
    A promotion pass is no trace of its own.
    """
    from diagnostics.loop_traces import count_loop_traces  # noqa: PLC0415  (imports JAX)

    with count_loop_traces() as seen:
        yield seen


_SEEN = pytest.StashKey[Any]()
_FROM_WORKERS = pytest.StashKey[list[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin to look, if a report was asked for."""
    if not session.config.getoption("--loops-report"):
        return
    from diagnostics.loop_traces import count_loop_traces  # noqa: PLC0415  (imports JAX)

    with ExitStack() as stack:
        seen = stack.enter_context(count_loop_traces())
        session.config.stash[_SEEN] = seen
        session.config.add_cleanup(stack.pop_all().close)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist, hand the report to the process that prints it."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and (lines := _lines(session.config)) is not None:
        output["loops_report"] = lines


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the report of a worker of pytest-xdist."""
    lines = getattr(node, "workeroutput", {}).get("loops_report", [])
    node.config.stash.setdefault(_FROM_WORKERS, []).extend(lines)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the loops."""
    lines = _lines(config)
    if lines is None:
        return
    lines += config.stash.get(_FROM_WORKERS, [])
    terminalreporter.section("loops")
    terminalreporter.write_line("\n".join(lines) or "no loop was traced")


def _lines(config: pytest.Config) -> list[str] | None:
    """The report of this process, None if nobody asked for one."""
    seen = config.stash.get(_SEEN, None)
    if seen is None:
        return None
    from diagnostics.loop_traces import report  # noqa: PLC0415  (imports JAX)

    return report(seen.loops)
