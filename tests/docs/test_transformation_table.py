"""The table in tests/rules/README.md names tests that exist."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "rules" / "README.md"


def test_each_cell_is_a_test():
    """Every test id in the table can be collected, and every file named below it exists."""
    page = PAGE.read_text()
    ids = set(re.findall(r"`(test_\w+\.py::[^`]+)`", page))
    files = set(re.findall(r"`(test_\w+\.py)`", page))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    modules = sorted({f"tests/rules/{name.split('::')[0]}" for name in ids})
    collected = subprocess.run(
        [*command, *modules], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    known = {line.removeprefix("tests/rules/") for line in collected.splitlines()}
    assert ids
    assert set() == ids - known
    assert set() == {name for name in files if not (PAGE.parent / name).exists()}
