"""Runs the Python blocks of a Markdown file as its reader would, in a fresh process.

    python -m tests.helpers.markdown FILE      prints what each block put out, as JSON

The blocks share one namespace and run in order. What a block puts out is what it prints and, if it
raises, the last lines that Python would show. Line numbers are the file's.
"""

import contextlib
import io
import json
import linecache
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A Python block: the line it begins on, its code, and the text block right after it."""

    line: int
    code: str
    expected: str | None


class Ran(NamedTuple):
    """What a block put out, and whether it raised."""

    output: str
    raised: bool


def python_blocks(text: str) -> list[Block]:
    """The blocks fenced as `python`, each with the block fenced as `text` that follows at once."""
    fences = list(FENCED.finditer(text))
    blocks = []
    for fence, following in zip(fences, [*fences[1:], None], strict=True):
        if fence[1] != "python":
            continue
        at_once = following and not text[fence.end() : following.start()].strip()
        expected = following[2] if following and at_once and following[1] == "text" else None
        line = text.count("\n", 0, fence.start(2)) + 1
        blocks.append(Block(line, fence[2], expected))
    return blocks


def run_block(block: Block, filename: str, namespace: dict[str, Any]) -> Ran:
    """Runs one block in the namespace."""
    printed, raised = io.StringIO(), False
    with contextlib.redirect_stdout(printed):
        try:
            code = compile("\n" * (block.line - 1) + block.code, filename, "exec")
            exec(code, namespace)  # noqa: S102
        except Exception as error:  # noqa: BLE001
            raised = True
            printed.writelines(traceback.format_exception_only(error))
    return Ran(printed.getvalue(), raised)


def code_lines(text: str, blocks: list[Block]) -> list[str]:
    """The lines of the blocks where they stand in the file, and empty lines between them.

    It is what whoever asks for the source of a block's function is to get.
    """
    lines = ["\n"] * text.count("\n")
    for block in blocks:
        new = block.code.splitlines(keepends=True)
        lines[block.line - 1 : block.line - 1 + len(new)] = new
    return lines


def run_in_fresh_process(path: Path, root: Path) -> list[Ran]:
    """Runs all blocks of the file with `root` as the current folder."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.helpers.markdown", str(path)],
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
    )
    return [Ran(*one) for one in json.loads(run.stdout)]


def main(filename: str) -> None:
    """Runs the file's blocks and prints what they put out."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    text = Path(filename).read_text()
    blocks = python_blocks(text)
    linecache.cache[filename] = len(text), None, code_lines(text, blocks), filename
    print(json.dumps([run_block(block, filename, namespace) for block in blocks]))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
