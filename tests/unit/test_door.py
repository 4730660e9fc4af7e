"""What may be imported and called where: the door to JAX's internals, and the layers.

Each rule is a function from source text to the lines that break it. It is applied to every file,
and to small sources that break it, so that a rule that has stopped looking is noticed.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOOR = Path("loops", "_jax.py")
TO_LAX = Path("loops", "interop", "to_lax.py")
BEHIND_THE_DOOR = ("jax._src", "jax.interpreters", "jax.extend")
STOCK_LOOPS = {"scan", "while_loop", "fori_loop", "map", "scan_p", "while_p"}
MAY_IMPORT = {
    "checks": {"checks"},
    "loops": {"checks", "loops"},
    "diagnostics": {"checks", "loops", "diagnostics"},
}
OURS = {*MAY_IMPORT, "tests", "notebooks"}
# Imported where they are used, because a user of the loops may not have them.
OPTIONAL = {"hypothesis", "matplotlib", "pytest", "rich", "tqdm"}

Findings = set[tuple[int, str]]


def python_files(*packages: str) -> list[Path]:
    """Every Python file of the packages, as paths from the root, in a fixed order."""
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in paths)


def dotted(node: ast.expr) -> str:
    """The text `a.b.c` of a chain of names, or an empty text for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            base = dotted(value)
            return f"{base}.{attribute}" if base else ""
        case _:
            return ""


def imports(node: ast.AST) -> dict[str, str]:
    """The names that an import statement binds, each with the full name of what it stands for."""
    match node:
        case ast.Import(names=names):
            # `import a.b` binds a, `import a.b as c` binds a.b.
            return {n.asname or n.name: n.name for n in names}
        case ast.ImportFrom(module=module, names=names, level=level):
            base = "." * level + (module or "")
            return {n.asname or n.name: f"{base}.{n.name}" for n in names}
        case _:
            return {}


def full_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of all that is imported, named, read as an attribute, or could be.

    Aliases are followed: after `from jax import lax as l`, `l.scan` is `jax.lax.scan`. A string of
    names and dots counts as a name, because that is what `importlib.import_module` takes.
    """
    nodes = list(ast.walk(ast.parse(source)))
    aliases = {name: full for node in nodes for name, full in imports(node).items()}
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from ((node.lineno, full) for full in imports(node).values())
            case ast.Attribute() | ast.Name():
                first, dot, rest = dotted(node).partition(".")
                yield node.lineno, aliases.get(first, first) + dot + rest
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.]+", text):
                yield node.lineno, text


def lies_in(name: str, modules: tuple[str, ...]) -> bool:
    """Whether the name is one of the modules or something inside one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def opens_the_door(source: str) -> Findings:
    """Where the source reaches for what only `loops/_jax.py` may reach for."""
    return {(line, name) for line, name in full_names(source) if lies_in(name, BEHIND_THE_DOOR)}


def uses_stock_loops(source: str) -> Findings:
    """Where the source names one of JAX's own loops, or spells a call of one even in a text."""
    named = {
        (line, name)
        for line, name in full_names(source)
        if lies_in(name, ("jax.lax", "jax._src")) and name.rpartition(".")[2] in STOCK_LOOPS
    }
    call = re.compile(r"\blax\.(scan|while_loop|fori_loop|map)\(")
    spelled = {(n, text) for n, text in enumerate(source.splitlines(), 1) if call.search(text)}
    return named | spelled


def imports_upwards(source: str, package: str) -> Findings:
    """Where the source imports a package of ours that lies above its own."""
    forbidden = tuple(OURS - MAY_IMPORT[package])
    return {
        (node.lineno, full)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for full in imports(node).values()
        if lies_in(full, forbidden)
    }


def comments(source: str) -> dict[int, str]:
    """The comments of the source by line, without the ones that are for tools or for the eye."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    speaks = re.compile(r"# (?!noqa|type:|pyrefly:|-+)")
    return {line: text for line, text in found.items() if speaks.match(text)}


def unexplained_private_names(source: str) -> Findings:
    """The imports and assignments that reach `jax._src`, with no comment on them or right above."""
    commented = comments(source).keys()
    reached = {line for line, name in full_names(source) if lies_in(name, ("jax._src",))}
    statements = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Assign | ast.AnnAssign) and "jax._src" in ast.unparse(node))
    ]
    spans = [range(s.lineno, (s.end_lineno or s.lineno) + 1) for s in statements]
    return {
        (span.start, source.splitlines()[span.start - 1])
        for span in spans
        if reached & set(span) and not commented & {span.start - 1, *span}
    }


OTHERS = [path for path in python_files("checks", "diagnostics", "loops") if path != DOOR]


@pytest.mark.parametrize("path", OTHERS, ids=str)
def test_only_the_door_reaches_into_jax(path):
    """No file but loops/_jax.py names jax._src, jax.interpreters or jax.extend."""
    assert set() == opens_the_door((ROOT / path).read_text())


@pytest.mark.parametrize("path", [p for p in python_files("loops") if p != TO_LAX], ids=str)
def test_loops_use_none_of_jaxs(path):
    """No file of loops names JAX's own loops or their primitives, save the one that writes them."""
    assert set() == uses_stock_loops((ROOT / path).read_text())


@pytest.mark.parametrize("path", python_files(*MAY_IMPORT), ids=str)
def test_nothing_imports_upwards(path):
    """`checks` imports nothing of ours, `loops` only checks, and none imports the tests."""
    assert set() == imports_upwards((ROOT / path).read_text(), path.parts[0])


def test_each_private_name_is_explained():
    """In the door, whatever reaches jax._src has a comment on its line or right above it."""
    assert set() == unexplained_private_names((ROOT / DOOR).read_text())


@pytest.mark.parametrize("package", ["checks", "loops"])
def test_import_needs_jax_and_numpy_alone(package):
    """A fresh process that imports the package has loaded none of the optional libraries."""
    code = f"import sys, {package}; print(*(name.partition('.')[0] for name in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert package in run.stdout.split()
    assert set() == OPTIONAL & set(run.stdout.split())


@pytest.mark.parametrize(
    "source",
    [
        "import jax._src.core",
        "import jax.interpreters.ad as ad",
        "from jax import _src",
        "from jax import extend as e",
        "from jax.extend.core import Primitive",
        "import jax\njax._src.core.Jaxpr",
        "import jax as j\nj.interpreters.mlir",
        "def f():\n    from jax._src import core",
        "importlib.import_module('jax._src.core')",
    ],
)
def test_the_door_rule_sees(source):
    """Each way to reach into JAX is found."""
    assert opens_the_door(source)


def test_the_door_rule_lets_pass():
    """JAX's public names are free for all, and so is a text about the private ones."""
    assert not opens_the_door("import jax.lax\n'not in jax._src, as said'\njax.core.Tracer")


@pytest.mark.parametrize(
    "source",
    [
        "import jax\njax.lax.scan",
        "from jax import lax\nlax.fori_loop(0, 1, f, x)",
        "from jax.lax import while_loop",
        "from jax.lax import map as each",
        "from jax._src.lax.control_flow import loops as l\nl.scan_p.bind",
        "'''Like lax.scan(f, init).'''",
        "lax = jax.lax\nlax.while_loop(c, b, x)",
    ],
)
def test_the_stock_loop_rule_sees(source):
    """Each way to name one of JAX's loops is found."""
    assert uses_stock_loops(source)


def test_the_stock_loop_rule_lets_pass():
    """Our own loops and other things called map are no loops of JAX's."""
    assert not uses_stock_loops("import jax, loops\nloops.scan(f, 0)\njax.tree.map(f, x)\nmap(f)")


@pytest.mark.parametrize(
    ("package", "source", "seen"),
    [
        ("checks", "import loops", True),
        ("checks", "from loops.scan import scan", True),
        ("loops", "import diagnostics.watch", True),
        ("loops", "from tests.helpers import python_loops", True),
        ("loops", "import checks", False),
        ("diagnostics", "import checks, loops", False),
    ],
)
def test_the_layer_rule_sees(package, source, seen):
    """An import of a higher layer is found, and one of a lower layer is not."""
    assert seen == bool(imports_upwards(source, package))


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("from jax._src import core", True),
        ("from jax._src import core  # noqa: F401", True),
        ("# -----\nfrom jax._src import core", True),
        ("# About the next but one.\n\nfrom jax._src import core", True),
        ("import jax\nJaxpr = jax._src.core.Jaxpr", True),
        ("# Private: no public name has it.\nfrom jax._src import core", False),
        ("from jax._src import (\n    core,  # no public name has it\n)", False),
        ("from jax import lax", False),
    ],
)
def test_the_explanation_rule_sees(source, seen):
    """A private name is found unless words stand on its line or right above it."""
    assert seen == bool(unexplained_private_names(source))
