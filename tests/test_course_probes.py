"""Probes: which functions of a check cell run beside the answer, and the cell without their code."""

import ast

import pytest

from grader.core.symbols import cell_names
from grader.course import probes

SETUP = {"ask", "compare", "counted", "error", "inputs", "np", "program", "require"}


def misuses(source, answers=("f",)):
    return [(m.line, m.message, m.fix) for m in probes.misuses(source, answers, SETUP)]


class Stub:
    """Stands for the grader's side: notes what `ask` was given."""

    def __init__(self, text, name=None):
        self.text, self.name = text, name


def run(source, answers=("f",)):
    asked = []
    space = {"Probe": Stub, "ask": lambda *a: asked.append(a), "error": lambda *a: asked.append(a), "f": "the answer"}
    exec(compile(probes.split(source, answers), "<check>", "exec"), space)
    return asked


def test_probes_are_defs_and_lambdas_in_first_place():
    source = (
        '"""T."""\n'
        "def plain(x):\n    return np.abs(x)\n"
        "def probe(x, *, n=2):\n    return [f(x) for _ in range(n)]\n"
        "ask(probe, 1)\n"
        "error(lambda x: f(x + 1), (lambda: 2)())\n"
        "program(f, plain(3))\n"
    )
    found = probes.probes(source, {"f"})
    assert [(p.lineno, ast.unparse(p)) for p in found] == [
        (4, "def probe(x, *, n=2):\n    return [f(x) for _ in range(n)]"),
        (7, "lambda x: f(x + 1)"),
    ]
    assert misuses(source) == []


@pytest.mark.parametrize(
    ("source", "free"),
    [
        ("ask(lambda x, y=a, *z, **k: (x, y, z, k, b), 1)", {"a", "b"}),
        ("def p(x):\n    for i in x:\n        t = i\n    return t, p\nask(p)", set()),
        ("def p(x):\n    return [y for y in x if (z := y)], z, {k: v for k, v in q}\nask(p)", {"q"}),
        ("def p(x):\n    import math as m\n    with m as w:\n        try: w\n        except m as e: e\nask(p)", set()),
        ("def p(x):\n    class C:\n        a = x\n        b = a, g\n    return C\nask(p)", {"g"}),
        ("def p(x):\n    def q():\n        nonlocal x\n        x = 1\n        return h\n    return q\nask(p)", {"h"}),
        ("def p():\n    global g\n    g = 1\nask(p)", {"g"}),
        ("@d\ndef p(x: t) -> r:\n    return x\nask(p)", {"d", "t", "r"}),
        ("def p(x):\n    match x:\n        case [a, *b]: return a, b\n        case K(c=d): return d\nask(p)", {"K"}),
        ("def p(x):\n    del x\n    y: int = 1\n    return lambda a: a + y + u\nask(p)", {"int", "u"}),
    ],
)
def test_free_names_follow_pythons_scopes(source, free):
    assert cell_names(ast.unparse(probes.probes(source, {"f"})[0])).free == free


def test_the_cell_runs_without_its_probes_code():
    asked = run(
        "def probe(x):\n    return f(x)\n"
        "ask(probe, 1)\n"
        "for n in (1, 2):\n    ask(lambda x: f(x), n)\n"
        "error(f, 3)\n"
        "def helper(x):\n    return x * 10\n"
        "ask(f, helper(4))\n"
    )
    assert [(a[0].text, a[0].name, a[1]) for a in asked[:1]] == [("def probe(x):\n    return f(x)", "probe", 1)]
    assert [(a[0].text, a[0].name, a[1]) for a in asked[1:3]] == [("lambda x: f(x)", None, n) for n in (1, 2)]
    assert asked[3:] == [("the answer", 3), ("the answer", 40)]


def test_a_name_may_be_defined_again_as_another_probe():
    asked = run("def p(): return 1\nask(p)\ndef p(): return 2\nask(p)")
    assert [a[0].text for a in asked] == ["def p():\n    return 1", "def p():\n    return 2"]


def test_lines_are_kept():
    source = "1\ndef probe(x):\n    a = 1\n    b = 2\n    return a\nask(probe, 1 / 0)\n"
    with pytest.raises(ZeroDivisionError) as caught:
        run(source)
    assert caught.traceback[-1].lineno + 1 == 6
    assert [node.lineno for node in probes.split(source, {"f"}).body] == [1, 2, 6]


def test_nothing_of_a_probe_is_left_to_run():
    code = probes.split("def p(x):\n    return secret(x)\nask(p)\nask(lambda: secret(f))", {"f"})
    assert "secret" not in {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}


NEITHER = "which is neither an answer's name nor a probe"
FIRST = "Pass an answer's name, a `def` of this cell or a lambda first, and data after it"
ONLY = "Return data from the probe, and judge it in the check"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("ask(g, 1)", (1, f"`ask` is called with `g`, {NEITHER}", FIRST)),
        ("\nerror(np.lower, 1)", (2, f"`error` is called with `np.lower`, {NEITHER}", FIRST)),
        ("p = lambda: 1\nask(p)", (2, f"`ask` is called with `p`, {NEITHER}", FIRST)),
        ("program()", (1, f"`program` is called with nothing, {NEITHER}", FIRST)),
        ("class P: pass\nask(P)", (2, f"`ask` is called with `P`, {NEITHER}", FIRST)),
        (
            "calls = [ask]\nask(f)",
            (1, "`ask` is used other than by calling it", "Call it where it is needed: `ask(answer, ...)`"),
        ),
        (
            "n = 3\nask(lambda x: f(x, n), 1)",
            (
                2,
                "a lambda probe uses `n`, which is no name of setup, of an answer or of its own",
                "Pass `n` as an argument, or bind it in a setup cell",
            ),
        ),
        (
            "def want(x): return x\ndef p(x):\n    return f(want(x))\nask(p, 1)",
            (
                3,
                "the probe `p` uses `want`, which is no name of setup, of an answer or of its own",
                "Pass `want` as an argument, or bind it in a setup cell",
            ),
        ),
        (
            "def p(x):\n    return ask(f, x)\nask(p, 1)",
            (2, "the probe `p` uses `ask`, which judges or draws on the grader's side only", ONLY),
        ),
        (
            "ask(lambda: f(inputs.key()))",
            (1, "a lambda probe uses `inputs`, which judges or draws on the grader's side only", ONLY),
        ),
        (
            "x = 1\ncompare(f(x), 2)\nask(f)",
            (
                2,
                "the answer's name `f` is used outside `ask`, `error`, `program` and probes",
                "Write `ask(f, ...)` with data, or do it inside a probe",
            ),
        ),
        (
            "def helper(x):\n    return f(x)\nask(f, helper(1))",
            (
                2,
                "the answer's name `f` is used outside `ask`, `error`, `program` and probes",
                "Write `ask(f, ...)` with data, or do it inside a probe",
            ),
        ),
        (
            "ask(f, f)",
            (
                1,
                "the answer's name `f` is used outside `ask`, `error`, `program` and probes",
                "Write `ask(f, ...)` with data, or do it inside a probe",
            ),
        ),
        ("compare(1, 1)", (1, "the check asks the answer nothing", "Call `ask`, `error` or `program`")),
        ("np = ask(f, 1)", (1, "the check binds `np`, which setup binds", "Choose another name")),
        (
            "ask(f, unheard_of)",
            (
                1,
                "the check uses `unheard_of`, which neither setup nor this cell binds",
                "Bind it in this cell or in a setup cell: each check stands alone",
            ),
        ),
        ("f = ask(f, 1)", (1, "the check binds `f`, which is an answer's name", "Choose another name")),
        (
            "def p(x): return f(x)\nask(p, 1)\np(2)",
            (
                3,
                "`p` is a probe and is also used directly, on the grader's side",
                "Ask for it with `ask(p, ...)`, or write a second function for the check's own use",
            ),
        ),
        (
            "def p(x): return f(x)\nask(p, 1)\np = 2",
            (3, "`p` is a probe and is also assigned to", "Choose another name"),
        ),
    ],
)
def test_what_would_not_mean_the_same_everywhere_is_named(source, problem):
    assert misuses(source) == [problem]


@pytest.mark.parametrize(
    "source",
    [
        "def helper(f): return f + 1\nask(f, helper(1))",  # a parameter of its own
        "ask(f, [f_ for f_ in range(3)])",
        "def p(x):\n    def q(y): return f(y)\n    return q(x)\nask(p, 1)",
        "def one(n):\n    return ask(lambda x: f(x), n)\ncompare(one(2), 2)",
        "with np.errstate():\n    ask(f, 1)",
        "got = [ask(f, n) for n in range(3)]",
    ],
)
def test_what_is_fine_is_let_pass(source):
    assert misuses(source) == []
