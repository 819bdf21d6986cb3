"""Import statements: when they run, what they resolve to, and the graph they make."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from orchestrator.workers.demo.imports import MAX_LIST_BYTES, build_graph, read_imports
from orchestrator.workers.demo.measure import parse
from orchestrator.workers.demo.models import Import, ImportGraph, ImportList
from orchestrator.workers.demo.source import read_source, scan_tree

if TYPE_CHECKING:
    import pytest

    from tests.unit.demo.conftest import WriteTree


def graph_of(write_tree: WriteTree, files: dict[str, str | bytes], *, below: str = "") -> ImportGraph:
    """Plant files and build their graph."""
    root = write_tree(files) / below
    tree = scan_tree(root)
    return build_graph(
        tree, [ImportList(path=path, imports=read_imports(parse(read_source(root, path)))) for path in tree.files]
    )


def arrows(graph: ImportGraph) -> set[tuple[str, str, str]]:
    """All edges by name."""
    return {(graph.modules[e.importer].name, graph.modules[e.imported].name, e.when) for e in graph.edges}


def test_statements_are_read_with_the_time_they_run() -> None:
    """Imports at the top, in classes and in try blocks run with the module; others later or never."""
    module = parse(
        dedent("""
        import a.b, c as d
        from . import e
        from ..f import g as h, i
        try:
            import j
        except ImportError:
            from k import *
        class C:
            import l
        def f():
            import m
            if TYPE_CHECKING:
                import n
        if typing.TYPE_CHECKING:
            import o
            def g():
                import p
        else:
            import q
        if not TYPE_CHECKING:
            import r
        else:
            import s
        if __name__ == "__main__":
            import t
        match x:
            case 1:
                import u
        lambda: __import__("v")
        """).lstrip()
    )
    assert [(i.target, i.names, i.when) for i in read_imports(module)] == [
        ("a.b", (), "import"),
        ("c", (), "import"),
        (".", ("e",), "import"),
        ("..f", ("g", "i"), "import"),
        ("j", (), "import"),
        ("k", ("*",), "import"),
        ("l", (), "import"),
        ("m", (), "lazy"),
        ("n", (), "typing"),
        ("o", (), "typing"),
        ("p", (), "typing"),
        ("q", (), "import"),
        ("r", (), "import"),
        ("s", (), "typing"),
        ("t", (), "lazy"),
        ("u", (), "import"),
    ]
    assert read_imports(module)[3].line == 3


def test_a_list_of_imports_stays_small() -> None:
    """A file with absurdly many imports is cut, so that a batch of lists fits into a result."""
    module = parse("".join(f"import {'m' * 90}{n}\n" for n in range(1000)))
    cut = read_imports(module)
    assert cut[0] == Import(target="m" * 90 + "0", line=1)
    assert len(ImportList(path="x.py", imports=cut).model_dump_json()) < MAX_LIST_BYTES + 1000


def test_absolute_and_relative_imports_meet_in_the_same_module(write_tree: WriteTree) -> None:
    """Submodules are resolved through names, others lead to the module that defines the name."""
    graph = graph_of(
        write_tree,
        {
            "pkg/__init__.py": "from pkg.a import thing\n",
            "pkg/a.py": "from . import b, thing\nfrom .sub import c\nfrom .sub.c import d\nimport os, pkg.sub\n",
            "pkg/b.py": "from .. import pkg\nfrom ..nowhere import x\nfrom ....far import y\n",
            "pkg/sub/__init__.py": "from .. import b as other\nfrom ..a import *\n",
            "pkg/sub/c.py": "import pkg.sub.c\nfrom pkg import sub\n",
        },
    )
    assert arrows(graph) == {
        ("pkg", "pkg.a", "import"),
        ("pkg.a", "pkg.b", "import"),
        ("pkg.a", "pkg", "import"),
        ("pkg.a", "pkg.sub.c", "import"),
        ("pkg.a", "pkg.sub", "import"),
        ("pkg.b", "pkg", "import"),
        ("pkg.sub", "pkg.b", "import"),
        ("pkg.sub", "pkg.a", "import"),
        ("pkg.sub.c", "pkg.sub", "import"),
    }


def test_a_tree_that_is_a_package_itself_resolves_its_own_name(write_tree: WriteTree) -> None:
    """The folder of an installed package knows under which name it is imported; outside of it is outside."""
    graph = graph_of(
        write_tree,
        {
            "pkg/__init__.py": "",
            "pkg/in/__init__.py": "from pkg.in_ import x\nfrom pkg import other\n",
            "pkg/inner/__init__.py": "",
            "pkg/inner/a.py": "from pkg.inner import b\nimport pkg.other\nfrom ... import pkg\n",
            "pkg/inner/b.py": "import inner.a\n",
            "pkg/other.py": "",
        },
        below="pkg/inner",
    )
    assert [module.name for module in graph.modules] == ["pkg.inner", "pkg.inner.a", "pkg.inner.b"]
    assert arrows(graph) == {("pkg.inner.a", "pkg.inner.b", "import")}


def test_source_roots_scripts_and_namespaces_are_understood(write_tree: WriteTree) -> None:
    """Packages under `src` are found from tests, scripts find their neighbours, plain folders are packages."""
    graph = graph_of(
        write_tree,
        {
            "src/app/__init__.py": "",
            "src/app/core.py": "from app import __init__\nimport app\n",
            "src/app/plain/deep.py": "from app.core import x\n",
            "tests/test_core.py": "from app.core import x\nimport helper\n",
            "tests/helper.py": "",
            "tools/helper.py": "import ns.one\n",
            "ns/one.py": "from ns import two\n",
            "ns/two.py": "from .one import x\n",
        },
    )
    assert arrows(graph) == {
        ("app.core", "app", "import"),
        ("app.plain.deep", "app.core", "import"),
        ("tests.test_core", "app.core", "import"),
        ("tests.test_core", "tests.helper", "import"),
        ("tools.helper", "ns.one", "import"),
        ("ns.one", "ns.two", "import"),
        ("ns.two", "ns.one", "import"),
    }


def test_modules_of_one_name_are_told_apart_by_path(write_tree: WriteTree) -> None:
    """Two files that would be imported under one name keep their paths in the report."""
    graph = graph_of(write_tree, {"a/x/__init__.py": "", "b/x/__init__.py": "", "c.py": "import x\n", "x.txt": ""})
    assert [module.name for module in graph.modules] == ["a/x/__init__.py", "b/x/__init__.py", "c"]
    assert graph.edges == ()


def test_between_two_modules_the_import_that_runs_first_counts(write_tree: WriteTree) -> None:
    """One edge per pair: import time before function, function before type checker, then the first line."""
    graph = graph_of(
        write_tree,
        {
            "a.py": "if TYPE_CHECKING:\n    import b, c, d\ndef f():\n    import b\n    import c\nimport b\nimport b\n",
            "b.py": "",
            "c.py": "",
            "d.py": "import d\n",
        },
    )
    assert [(graph.modules[e.imported].name, e.line, e.when) for e in graph.edges] == [
        ("b", 6, "import"),
        ("c", 5, "lazy"),
        ("d", 2, "typing"),
    ]


def test_cycles_are_told_with_the_lines_that_close_them(write_tree: WriteTree) -> None:
    """An import-time cycle is named exactly; one that needs a deferred import is deferred."""
    graph = graph_of(
        write_tree,
        {
            "p/__init__.py": "",
            "p/a.py": "x = 1\nfrom p import b\n",
            "p/b.py": "from .c import y\n",
            "p/c.py": "import os\n\nimport p.a\n",
            "p/lazy.py": "from . import held\n",
            "p/held.py": "def f():\n    from . import lazy\n",
            "p/typed.py": "from .a import x\n",
        },
    )
    immediate, deferred = graph.cycles
    assert graph.loop_names(immediate) == ["p.a", "p.b", "p.c", "p.a"]
    assert [edge.line for edge in immediate.loop] == [2, 1, 3]
    assert not immediate.deferred
    assert graph.loop_names(deferred) == ["p.held", "p.lazy", "p.held"]
    assert deferred.deferred
    loops = graph.loops()
    assert set(loops) == {"p/a.py", "p/b.py", "p/c.py"}
    assert (loops["p/b.py"].names, loops["p/b.py"].line) == (("p.b", "p.c", "p.a", "p.b"), 1)


def test_hostile_names_make_nodes_but_no_trouble(write_tree: WriteTree) -> None:
    """Files that nobody can import are modules without edges."""
    graph = graph_of(
        write_tree, {"<img src=x>.py": "import os\n", "a.b.py": "", "my-script.py": "import a.b\n", ".py": ""}
    )
    assert [module.path for module in graph.modules] == [".py", "<img src=x>.py", "a.b.py", "my-script.py"]
    assert graph.edges == ()


def test_a_huge_graph_is_cut_but_its_cycles_are_whole(write_tree: WriteTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges beyond the cap are counted as left out; cycles are found over all of them."""
    monkeypatch.setattr("orchestrator.workers.demo.imports.MAX_EDGES", 2)
    graph = graph_of(write_tree, {"a.py": "import b, c\n", "b.py": "import a, c\n", "c.py": "import a\n"})
    assert (len(graph.edges), graph.edges_left_out) == (2, 3)
    assert graph.cycles[0].members == (0, 1, 2)
