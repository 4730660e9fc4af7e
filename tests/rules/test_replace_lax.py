"""Our loops in the place of `jax.lax`'s: where they are put, what they run, and what is left."""

import sys
import threading
from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.lax import scan as taken_before

import loops
from loops import replace_lax
from tests.helpers.comparison import assert_same
from tests.helpers.equations import all_primitives

NAMES = ("scan", "while_loop", "fori_loop", "map")
ORIGINALS = {name: getattr(lax, name) for name in NAMES}
X = jnp.float32([0.5, 1.5, 2.0])


def has_ours(jaxpr):
    """Whether one of our loops stands in a program, at any depth."""
    return not {loops.scan_p, loops.while_p}.isdisjoint(all_primitives(jaxpr))


def namespaces():
    """All names in all modules of JAX, and which object each stands for."""
    return {
        (name, key): id(value)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "jax" and isinstance(module, ModuleType)
        for key, value in list(vars(module).items())
        if key != "__warningregistry__"
    }


def is_replaced():
    """Whether `jax.lax` has our loops, all or none of them."""
    (replaced,) = {getattr(lax, name) is getattr(loops, name) for name in NAMES}
    return replaced


def summed(xs):
    """A program that was written for `jax.lax`."""
    return lax.scan(lambda c, x: (c + x, c), jnp.float32(0.0), xs)


def test_names_inside_and_afterwards():
    """Inside, `jax.lax`'s four loops are ours; afterwards they are the objects from before."""
    with replace_lax():
        assert is_replaced()
        assert has_ours(jax.make_jaxpr(summed)(X))

    assert {name: getattr(lax, name) for name in NAMES} == ORIGINALS
    assert not has_ours(jax.make_jaxpr(summed)(X))


def test_everything_is_as_it_was():
    """No name in any module of JAX stands for another object afterwards."""
    before = namespaces()
    with replace_lax():
        changed = {place for place, value in namespaces().items() if before[place] != value}
    after = namespaces()

    assert {("jax.lax", name) for name in NAMES} <= changed
    assert {place: after[place] for place in before} == before


def test_an_exception():
    """A block that raises restores everything, and the exception is the block's."""
    with pytest.raises(KeyError, match="its own"), replace_lax():
        raise KeyError("its own")
    assert not is_replaced()


def test_nested_blocks():
    """The outermost block's end restores; an inner one's does not."""
    with replace_lax():
        with replace_lax():
            assert is_replaced()
        assert is_replaced()
        with pytest.raises(KeyError, match="inner"), replace_lax():
            raise KeyError("inner")
        assert is_replaced()
    assert not is_replaced()


def test_as_a_decorator():
    """A function may be decorated, and is then inside whenever it is called."""
    inside = replace_lax()(is_replaced)

    assert [inside(), is_replaced(), inside()] == [True, False, True]


def test_two_threads():
    """Of two threads that are inside at a time, the one that leaves last restores."""
    entered, may_leave, seen = threading.Event(), threading.Event(), []

    def other():
        with replace_lax():
            entered.set()
            may_leave.wait(30)
            seen.append(is_replaced())

    thread = threading.Thread(target=other)
    with replace_lax():
        thread.start()
        assert entered.wait(30)
    assert is_replaced()  # the other thread is inside still
    may_leave.set()
    thread.join(30)

    assert seen == [True]
    assert not is_replaced()


def test_many_threads_that_trace():
    """Threads that go in and out and trace all the while have ours inside, and restore."""
    programs = []

    def work(n):
        for _ in range(5):
            with replace_lax():
                programs.append(jax.make_jaxpr(lambda xs: summed(n * xs))(X))

    threads = [threading.Thread(target=work, args=(n,)) for n in (2.0, 3.0, 4.0, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(programs) == 20
    assert all(map(has_ours, programs))
    assert not is_replaced()


def poisson(_):
    """Random numbers that JAX draws by a while loop of its own."""
    return jax.random.poisson(jax.random.key(3), 4.0, (5,))


def greatest_divisor(x):
    """Another function of JAX that loops."""
    return jnp.gcd((8 * x).astype(jnp.int32), jnp.int32([4, 6, 8]))


@pytest.mark.parametrize("fun", [poisson, greatest_divisor, lambda x: lax.map(jnp.sin, x)])
def test_loops_inside_jax(fun):
    """Functions of JAX that loop use ours inside, with the same results."""
    with replace_lax():
        program, got = jax.make_jaxpr(fun)(X), fun(X)

    assert has_ours(program)
    assert not {lax.scan_p, lax.while_p} & set(all_primitives(program))
    assert_same(got, fun(X))


def stock_scan(x):
    """JAX's scan with a step left over, differentiated below."""
    return taken_before(lambda c, y: (c * y, c), x[0], x, unroll=2)[0]


def stock_while(x):
    """JAX's while loop, whose lanes end at different steps below."""
    return ORIGINALS["while_loop"](lambda c: c < 3.0, lambda c: c * 1.5, x.sum())


@pytest.mark.parametrize(
    "run",
    [
        lambda: jax.jit(stock_scan)(X),
        lambda: jax.grad(stock_scan)(X),
        lambda: jax.vmap(stock_while)(jnp.stack([X, 0.1 * X])),
        lambda: jax.jit(jax.vmap(stock_while))(jnp.stack([X, 0.1 * X])),
    ],
)
def test_jaxs_own_loops_still_work(run):
    """A loop of JAX's that was taken out before is run by JAX's rules, and not by our loops."""
    want = run()
    jax.clear_caches()
    with replace_lax():
        assert taken_before is not lax.scan
        assert_same(run(), want)


def test_compiled_functions_are_kept_apart():
    """A jitted function has ours inside and JAX's outside, whenever it was called first."""
    traced = []

    @jax.jit
    def fun(xs):
        traced.append(is_replaced())
        return summed(xs)

    def where_traced():
        traced.clear()
        fun(X)
        return list(traced)

    with replace_lax():
        pass  # its first use in a process makes JAX forget what it compiled before
    assert where_traced() == [False]
    with replace_lax():
        assert where_traced() == [True]
        assert where_traced() == []
    assert where_traced() == []
    with replace_lax():
        assert where_traced() == []


def test_a_module_that_is_loaded_inside(monkeypatch):
    """A module of JAX that takes a loop out of `jax.lax` inside has JAX's loop afterwards."""
    late = ModuleType("jax.made_for_a_test")
    monkeypatch.setitem(sys.modules, late.__name__, late)
    with replace_lax():
        vars(late)["loop"] = lax.scan
        assert vars(late)["loop"] is loops.scan

    assert vars(late)["loop"] is ORIGINALS["scan"]


def test_what_someone_else_replaced(monkeypatch):
    """Names that were ours before, or someone else's, are the same afterwards."""
    mine = partial(ORIGINALS["fori_loop"], unroll=2)
    monkeypatch.setattr(lax, "scan", loops.scan)
    monkeypatch.setattr(lax, "fori_loop", mine)
    with replace_lax():
        assert lax.scan is loops.scan
        assert lax.fori_loop is mine

    assert lax.scan is loops.scan
    assert lax.fori_loop is mine


def test_what_a_block_replaced_itself():
    """A name that the block bound to something else is JAX's again afterwards."""
    with replace_lax():
        vars(lax)["scan"] = lambda *args: None
    assert lax.scan is ORIGINALS["scan"]
