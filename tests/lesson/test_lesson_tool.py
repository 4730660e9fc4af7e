"""The lesson's own checker, where its folder lies beside this checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT.parent / "shared" / "tools" / "lesson.py"


@pytest.mark.skipif(
    not TOOL.exists(),
    reason="needs ../shared/tools/lesson.py; test_lesson.py checks the same from this repository",
)
def test_every_block_of_the_lesson_holds():
    """The checker passes each of the lesson's thirteen blocks on our loops."""
    run = subprocess.run(
        [sys.executable, str(TOOL), "loops"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )

    assert "13 passed, 0 failed" == (run.stdout.splitlines() or [""])[-1], run.stdout + run.stderr
    assert 0 == run.returncode
