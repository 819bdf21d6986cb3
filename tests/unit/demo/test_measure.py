"""What one file measures, to the number; and that nothing in a file can hurt who measures it."""

from __future__ import annotations

import warnings
from textwrap import dedent

import pytest

from orchestrator.workers.demo.measure import MAX_NAMED, measure_text
from orchestrator.workers.demo.models import FileMeasure, FunctionMeasure, Undocumented


def measured(text: str) -> FileMeasure:
    """Measure dedented source."""
    return measure_text("x.py", dedent(text).lstrip("\n"))


def test_a_file_with_everything_measures_exactly_this() -> None:
    """Lines, complexity, nesting, docstrings and imports of a small file are as counted by hand."""
    file = measured('''
        """A module.

        # not a comment, but a docstring
        """
        import os  # one line of code
        from sys import path, argv

        # a comment
        TEXT = """
        # not a comment either

        """

        def branching(a, b=1, *rest, c, **more):
            if a and b or c:                    # if 1, and 1, or 1
                for _ in rest:                  # for 1
                    while a:                    # while 1
                        a -= 1
            elif b:                             # elif 1
                pass
            return [x for x in rest if x]       # for 1, if 1

        class Thing:
            """A class."""

            def method(self):
                """A method."""
                return 1 if os else 2           # conditional expression 1
        ''')
    assert file == FileMeasure(
        path="x.py",
        lines=28,
        code_lines=16,
        complexity=11,
        histogram={2: 1, 9: 1},
        nesting=3,
        worst=(
            FunctionMeasure(name="branching", line=14, lines=8, complexity=9, nesting=3, parameters=5),
            FunctionMeasure(name="Thing.method", line=26, lines=3, complexity=2, nesting=0),
        ),
        public=4,
        undocumented=(Undocumented(kind="function", name="branching", line=14),),
        undocumented_count=1,
        imports=2,
    )
    assert (file.functions, file.complexity_max) == (2, 9)


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("pass", 1),
        ("if a: pass", 2),
        ("if a: pass\n    elif b: pass\n    else: pass", 3),
        ("for x in y: pass\n    else: pass", 2),
        ("async for x in y: pass", 2),
        ("while a: pass", 2),
        ("try: pass\n    except A: pass\n    except B: pass\n    else: pass\n    finally: pass", 3),
        ("try: pass\n    except* A: pass", 2),
        ("with a: pass", 1),
        ("assert a", 1),
        ("return a and b and c", 3),
        ("return a if b else c", 2),
        ("return {x: y for x in a for y in b if x if y}", 5),
        ("return lambda: a or b", 2),
        ("match a:\n        case 1: pass\n        case [x] if x: pass\n        case _: pass", 3),
        ("match a:\n        case _ if a: pass", 2),
    ],
)
def test_each_decision_counts_as_documented(body: str, complexity: int) -> None:
    """McCabe's number grows with each kind of decision as the module says."""
    assert measured(f"async def f():\n    {body}\n").complexity_max == complexity


def test_a_nested_function_is_measured_on_its_own() -> None:
    """What is inside a function within a function belongs to the inner one; defaults and decorators to the outer."""
    file = measured("""
        def outer(a):
            if a:
                @(a or b)
                def inner(x=a or b):
                    if x:
                        return 1
        """)
    assert [(f.name, f.complexity, f.nesting) for f in file.worst] == [("outer", 4, 1), ("outer.inner", 2, 1)]


def test_elif_does_not_nest_but_if_inside_else_does() -> None:
    """A chain of elif is as deep as its first if."""
    chain = measured("def f(a):\n    if a: pass\n    elif a: pass\n    elif a: pass\n")
    inside = measured("def f(a):\n    if a: pass\n    else:\n        if a: pass\n")
    assert (chain.nesting, inside.nesting) == (1, 2)


def test_code_outside_functions_counts_when_it_decides() -> None:
    """A module with branches has one more unit; one without has none."""
    assert measured("x = 1\n").worst == ()
    (module,) = measured("if x:\n    y = 1\nclass A:\n    z = 1 if y else 2\n").worst
    assert (module.name, module.line, module.complexity) == ("<module>", 1, 3)


def test_private_names_variants_and_empty_modules_need_no_docstring() -> None:
    """What begins with an underscore, overloads, setters, local functions and empty modules are not missing one."""
    file = measured('''
        """Module."""
        import typing
        def _private(): ...
        class _Hidden:
            def method(self): ...
        class Shown:
            """Shown."""
            def __init__(self): ...
            @typing.overload
            def f(self): ...
            @property
            def p(self):
                """P."""
            @p.setter
            def p(self, value): ...
            def g(self):
                """G."""
                def local(): ...
        ''')
    assert (file.public, file.undocumented) == (4, ())
    assert measured("").public == 0
    assert measured("# nothing but this\n").public == 0
    assert measured("x = 1\n").undocumented == (Undocumented(kind="module", name="<module>", line=1),)


def test_definitions_under_a_condition_are_public_too() -> None:
    """A function inside `if` or `try` of the module can be imported, so it needs a docstring."""
    file = measured('"""M."""\ntry:\n    def f(): ...\nexcept E:\n    class C: ...\n')
    assert [missing.name for missing in file.undocumented] == ["f", "C"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(:\n", "line 1: invalid syntax"),
        ("x = 1\nprint 'old'\n", "line 2: Missing parentheses in call to 'print'"),
        ("x = '\0'\n", "null bytes"),
        ("  x = 1\n", "line 1: unexpected indent"),
        ("x = " + "(" * 300 + ")" * 300, "line 1: too many nested parentheses"),
        ("x = " + "-" * 200_000 + "1", "nested too deeply for the parser"),
        ("x = " + "+".join(["1"] * 100_000), "nested too deeply for the parser"),
        ("é" * 5 + "\ud800", "surrogates not allowed"),
    ],
    ids=["syntax", "python2", "nul", "indent", "parentheses", "minus", "plus", "surrogate"],
)
def test_what_cannot_be_parsed_is_a_finding(text: str, problem: str) -> None:
    """A broken file keeps its size, says why, and measures nothing else."""
    file = measure_text("x.py", text)
    assert problem in file.problem
    assert len(file.problem) <= 200
    assert (file.lines, file.functions, file.public) == (text.count("\n") + (not text.endswith("\n")), 0, 0)


def test_deep_but_valid_source_is_measured() -> None:
    """What the parser takes is measured, however deep its tree is."""
    chain = "def f(a):\n    return a" + "".join(f".b{n}" for n in range(900)) + "\n"
    blocks = "def g(a):\n" + "".join("    " * (n + 1) + "if a:\n" for n in range(90)) + "    " * 91 + "pass\n"
    file = measure_text("x.py", chain + blocks)
    assert (file.problem, file.nesting, file.complexity_max) == ("", 90, 91)


def test_warnings_of_audited_source_stay_inside() -> None:
    """An invalid escape in a file warns nobody, and is no error where warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure_text("x.py", "x = '\\d'\n").problem == ""


def test_lists_are_cut_and_counts_go_on() -> None:
    """A file with very many or very long names stays small enough to travel."""
    many = "".join(f"def {'f' * 500}{n}(a):\n    return a or {n}\n" for n in range(400))
    file = measure_text("x.py", many)
    assert (file.functions, file.undocumented_count, file.public) == (400, 401, 401)
    assert len(file.worst) <= MAX_NAMED
    assert len(file.undocumented) == MAX_NAMED
    assert len(file.model_dump_json()) < 10_000
