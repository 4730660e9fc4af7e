"""The notebooks run from top to bottom, and a cell that is said to fail does fail."""

import re
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[2]
SECONDS_PER_CELL = 100
EXPECTED_TO_RAISE = "raises-exception"


def notebooks():
    """The Markdown files that are notebooks: jupytext says so in their first lines."""
    pages = sorted((ROOT / "notebooks").rglob("*.md"))
    return [page for page in pages if page.read_text().startswith("---\njupytext:")]


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Runs the cells in a kernel of this interpreter; a failure without the tag raises."""
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS_PER_CELL, resources=resources).execute()


def cells_that_should_have_raised(notebook: NotebookNode) -> list[str]:
    """The tagged cells without an error among their outputs."""
    return [
        cell.source
        for cell in notebook.cells
        if EXPECTED_TO_RAISE in cell.metadata.get("tags", [])
        and not any(output.output_type == "error" for output in cell.outputs)
    ]


def is_defined(name: str, file: str) -> bool:
    """Whether the file exists and binds the name at its top level."""
    definition = re.compile(rf"^(?:(?:def|class) {name}\b|{name}\b.* = )", re.MULTILINE)
    return (ROOT / file).exists() and bool(definition.search((ROOT / file).read_text()))


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_notebook_runs(path):
    """Untagged cells succeed, and cells tagged raises-exception raise."""
    notebook: Any = jupytext.read(path)  # annotated with every format there ever was
    execute(notebook, path.parent)

    assert [] == cells_that_should_have_raised(notebook)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_code_that_the_notebook_points_at_exists(path):
    """Where the text says `name` in `file.py`, the file is there and has the name."""
    pointers = re.findall(r"`(\w+)` in\s+`([\w/]+\.py)`", path.read_text())

    assert [] == [pointer for pointer in pointers if not is_defined(*pointer)]


def test_there_are_notebooks():
    """The search for notebooks finds the lesson."""
    assert "lesson" in [path.stem for path in notebooks()]


def test_a_cell_that_fails_fails_the_notebook(tmp_path):
    """An error in an untagged cell is not passed over."""
    notebook = new_notebook(cells=[new_code_cell("1 / 0")])

    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(notebook, tmp_path)


def test_a_tagged_cell_must_raise():
    """A tagged cell without an error is found, one with an error is not."""
    error = new_output("error", ename="TypeError", evalue="", traceback=[])
    tags = {"tags": [EXPECTED_TO_RAISE]}
    raises = new_code_cell("1 / 0", metadata=tags, outputs=[error])
    passes = new_code_cell("1 / 1", metadata=tags)

    assert ["1 / 1"] == cells_that_should_have_raised(new_notebook(cells=[raises, passes]))
