"""Expressions rewritten as text: a keyword added to a call, a method called on the result."""

import ast


def parsed(text: str) -> ast.expr | None:
    """The syntax tree of an expression that may run over several lines; None if it is none."""
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def one_line(text: str) -> str:
    r"""An expression on one line, without comments.

    Example:
      >>> one_line("a  # the first\n+ b"), one_line("f(a,\n  b)")
      ('a + b', 'f(a, b)')
    """
    node = parsed(text) if "#" in text or "\\" in text else None
    if "\n" not in text or node is None:
        return " ".join(text.split()) if "\n" in text else text
    return ast.unparse(node)


_BINDS_TIGHTLY = (
    *(ast.Call, ast.Name, ast.Attribute, ast.Subscript),
    *(ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp),
)


def operand(text: str) -> str:
    """An expression, in parentheses if a method cannot be called on it as it stands."""
    node = parsed(text)
    return text if node is None or isinstance(node, _BINDS_TIGHTLY) else f"({text})"


def call_method(text: str, call: str) -> str:
    """`text` with a method call or an index after it."""
    return operand(text) + call


def called_name(text: str) -> str:
    """The last part of the name of the function that an expression calls, or nothing."""
    node = parsed(text)
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))


def names_read(text: str) -> list[str]:
    """The names that an expression reads, in order, functions and modules left out.

    Example:
      >>> names_read("p - rate * jnp.sign(g)")
      ['p', 'rate', 'g']
    """
    node = parsed(text)
    if node is None:
        return []
    functions = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    skipped = {id(n) for function in functions for n in ast.walk(function)}
    read = [n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in skipped]
    return list(dict.fromkeys(n.id for n in sorted(read, key=lambda n: (n.lineno, n.col_offset))))


def with_keyword(text: str, name: str, value: str) -> str | None:
    """A call with a keyword argument added, or changed if it has one of that name.

    Example:
      >>> with_keyword("x.sum(axis=0)", "keepdims", "True")
      'x.sum(axis=0, keepdims=True)'
    """
    node = parsed(text)
    if not isinstance(node, ast.Call) or not text.endswith(")"):
        return None
    for keyword in node.keywords:
        if keyword.arg == name:
            keyword.value = _expression(value)
            return ast.unparse(node)
    before = (ast.unparse(node) if "#" in text else text)[:-1].rstrip()
    if before.endswith(","):
        return f"{before} {name}={value})"
    has_arguments = node.args or node.keywords
    return f"{before}{', ' if has_arguments else ''}{name}={value})"


def without_keyword(text: str, name: str) -> str | None:
    """A call without a keyword argument that it has; None for anything else.

    Example:
      >>> without_keyword("x.mean(axis=0, keepdims=True)", "keepdims")
      'x.mean(axis=0)'
    """
    node = parsed(text)
    if not isinstance(node, ast.Call) or not has_keyword(text, name):
        return None
    node.keywords = [keyword for keyword in node.keywords if keyword.arg != name]
    return ast.unparse(node)


def has_keyword(text: str, name: str) -> bool:
    """Whether an expression is a call with a keyword argument of that name."""
    node = parsed(text)
    return isinstance(node, ast.Call) and any(keyword.arg == name for keyword in node.keywords)


def with_other_shape(text: str, shape: str) -> str | None:
    """A method call of `reshape` with another shape; None for any other expression.

    Example:
      >>> with_other_shape("(a + b).reshape(-1)", "(2, 3)")
      '(a + b).reshape((2, 3))'
    """
    node = parsed(text)
    if not isinstance(node, ast.Call) or called_name(text) != "reshape" or node.keywords:
        return None
    # `jnp.reshape(a, shape)` is a function of a module, and has the array before the shape.
    is_function = _is_of_a_module(node)
    if is_function and len(node.args) != 2:
        return None
    node.args = [*node.args[:1], _expression(shape)] if is_function else [_expression(shape)]
    return ast.unparse(node)


def _is_of_a_module(node: ast.Call) -> bool:
    """Whether a call is that of a module's function, and not of an array's method."""
    of = ast.unparse(node.func).rpartition(".")[0]
    return of in ("", "jnp", "np", "jax.numpy", "numpy", "lax", "jax.lax")


def arguments_after_array(text: str) -> int:
    """How many arguments a call has besides the array.

    Example:
      >>> arguments_after_array("jnp.round(x)"), arguments_after_array("x.round(2)")
      (0, 1)
    """
    node = parsed(text)
    if not isinstance(node, ast.Call):
        return 0
    return len(node.args) + len(node.keywords) - _is_of_a_module(node)


def with_integers(text: str) -> str | None:
    """Sums, products and the like with `1` for `1.0`; None where there is no whole float.

    Example:
      >>> with_integers("jnp.mod(n + 1.0, 4.0)"), with_integers("n * 1.5")
      ('jnp.mod(n + 1, 4)', None)
    """
    node = parsed(text)
    if node is None:
        return None
    constants = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
    floats = [(n, n.value) for n in constants if isinstance(n.value, float)]
    if not floats or any(value % 1 for _, value in floats):
        return None
    for constant, value in floats:
        constant.value = int(value)
    return ast.unparse(node)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def receiver(text: str) -> str | None:
    """What a call is made on: `c.x` in `c.x.squeeze()` and in `jnp.squeeze(c.x)`."""
    node = parsed(text)
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and not node.args:
        return ast.unparse(node.func.value)
    return ast.unparse(node.args[0]) if len(node.args) == 1 else None


def laid_out(text: str) -> str | None:
    """The array that a call lays out anew, the axes given or not.

    Example:
      >>> laid_out("jnp.expand_dims(c, 0)"), laid_out("(a + b).squeeze(axis=1)")
      ('c', 'a + b')
    """
    node = parsed(text)
    if not isinstance(node, ast.Call):
        return None
    if _is_of_a_module(node):
        return ast.unparse(node.args[0]) if node.args else None
    return ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else None


def with_floor_division(text: str) -> str | None:
    """A true division as a floor division; None for any other expression.

    Example:
      >>> with_floor_division("(a + b) / 2")
      '(a + b) // 2'
    """
    node = parsed(text)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return None
    node.op = ast.FloorDiv()
    return ast.unparse(node)


def casts_to_a_python_type(text: str) -> bool:
    """Whether an expression is an `astype` of `int`, `float` or `complex`, of no certain width.

    Example:
      >>> casts_to_a_python_type("x.astype(int)"), casts_to_a_python_type("x.astype(jnp.int32)")
      (True, False)
    """
    node = parsed(text)
    if not isinstance(node, ast.Call) or called_name(text) != "astype" or len(node.args) != 1:
        return False
    return ast.unparse(node.args[0]) in ("int", "float", "complex")


def with_other_cast(text: str, dtype: str) -> str | None:
    """An `astype` to another dtype; None for any other expression.

    Example:
      >>> with_other_cast("(a + b).astype(float)", "jnp.float32")
      '(a + b).astype(jnp.float32)'
    """
    node = parsed(text)
    is_cast = isinstance(node, ast.Call) and called_name(text) == "astype" and len(node.args) == 1
    if not is_cast or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    node.args[0] = _expression(dtype)
    return ast.unparse(node)
