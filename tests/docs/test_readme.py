"""README.md says what is so: its code runs, its outputs are right, its links lead somewhere.

Blocks fenced as `python` run in order in one fresh process. A block fenced as `text` right after
one is what that block prints; `...` in it stands for anything. A block that raises must have one.
"""

import doctest
import re
from pathlib import Path

import pytest

from tests.helpers.markdown import python_blocks, run_in_fresh_process

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted(ROOT.glob("*.md"))


def assert_blocks_hold(path):
    """Every block of the file puts out what the file says."""
    same = doctest.OutputChecker().check_output
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    blocks = python_blocks(path.read_text())

    for block, ran in zip(blocks, run_in_fresh_process(path, ROOT), strict=True):
        where = f"{path.name}, line {block.line}, puts out:\n{ran.output}"
        assert not ran.raised or block.expected is not None, where
        assert block.expected is None or same(block.expected, ran.output, flags), where


def test_code_in_the_readme_runs():
    """Each block of README.md runs, and prints what the page shows."""
    assert_blocks_hold(README)


def test_readme_shows_a_message():
    """There is code in README.md to run, and an output to compare."""
    assert any(block.expected for block in python_blocks(README.read_text()))


@pytest.mark.parametrize(
    ("page", "holds"),
    [
        ("```python\nx = 1\n```\nThen\n```python\nprint(x)\n```\n\n```text\n1\n```\n", True),
        ("```python\nprint(1)\n```\n```text\n2\n```\n", False),
        ("```python\n1 / 0\n```\n```text\nZeroDivisionError: ...\n```\n", True),
        ("```python\n1 / 0\n```\n", False),
        ("```sh\nmake test\n```\n", True),
    ],
)
def test_a_page_that_lies_is_caught(tmp_path, page, holds):
    """A wrong output or an unexpected error fails, and nothing else does."""
    path = tmp_path / "page.md"
    path.write_text(page)

    if holds:
        assert_blocks_hold(path)
    else:
        with pytest.raises(AssertionError, match=r"page\.md, line 2"):
            assert_blocks_hold(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Each relative link of the page names a file or a folder of this repository."""
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())

    assert [] == [link for link in links if not (page.parent / link).exists()]
