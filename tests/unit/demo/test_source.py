"""Finding and reading the files of a tree, also of a hostile one."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.workers.demo import source
from orchestrator.workers.demo.source import Unreadable, check_tree, default_tree, read_source, scan_tree

if TYPE_CHECKING:
    from tests.unit.demo.conftest import WriteTree


def test_files_come_in_path_order_without_caches_and_environments(write_tree: WriteTree) -> None:
    """Python files alone are listed, sorted, and neither hidden folders nor caches nor environments are entered."""
    root = write_tree(
        {
            "b.py": "",
            "a/z.py": "",
            "a/b/c.py": "",
            "a.py": "",
            "notes.txt": "",
            ".git/hook.py": "",
            ".venv/x.py": "",
            "__pycache__/b.py": "",
            "env/pyvenv.cfg": "",
            "env/lib/site.py": "",
        }
    )
    tree = scan_tree(root)
    assert tree.files == ("a/b/c.py", "a/z.py", "a.py", "b.py")
    assert [(skipped.path, skipped.reason) for skipped in tree.skipped] == [("env", "a virtual environment")]
    assert not tree.truncated


def test_a_package_knows_its_dotted_name(write_tree: WriteTree) -> None:
    """A folder that is a package, and its parents as far as they are packages, make the name."""
    root = write_tree({"top/__init__.py": "", "top/inner/__init__.py": "", "plain/x.py": ""})
    assert scan_tree(root / "top" / "inner").package == "top.inner"
    assert scan_tree(root / "plain").package == ""


def test_links_are_named_but_not_followed(write_tree: WriteTree) -> None:
    """Neither a loop of folders nor a file elsewhere is followed."""
    root = write_tree({"a/x.py": ""})
    (root / "a" / "again").symlink_to(root, target_is_directory=True)
    (root / "loop").symlink_to("loop")
    (root / "passwd.py").symlink_to("/etc/passwd")
    tree = scan_tree(root)
    assert tree.files == ("a/x.py",)
    assert [(skipped.path, skipped.reason) for skipped in tree.skipped] == [("passwd.py", "a symbolic link")]


def test_what_is_no_file_is_skipped(write_tree: WriteTree) -> None:
    """A pipe and a socket that are called like source are named, and nobody waits for them."""
    root = write_tree({"x.py": ""})
    os.mkfifo(root / "pipe.py")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s.py"))
        tree = scan_tree(root)
    assert tree.files == ("x.py",)
    assert {skipped.path: skipped.reason for skipped in tree.skipped} == {
        "pipe.py": "not a regular file",
        "s.py": "not a regular file",
    }


def test_a_name_that_cannot_travel_is_skipped(write_tree: WriteTree) -> None:
    """A file name that is no UTF-8 is named with escapes and left out."""
    root = write_tree({"good.py": ""})
    Path(os.fsdecode(os.fsencode(root) + b"/b\xffd.py")).write_text("")
    tree = scan_tree(root)
    assert tree.files == ("good.py",)
    assert tree.skipped[0].path == "b\\udcffd.py"
    tree.model_dump_json()


def test_caps_cut_a_tree_and_say_so(write_tree: WriteTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cap ends the walk and is told."""
    root = write_tree({f"f{number}.py": "" for number in range(5)})
    assert scan_tree(root, max_files=5).truncated is False
    assert scan_tree(root, max_files=4).files == ("f0.py", "f1.py", "f2.py", "f3.py")
    assert scan_tree(root, max_files=4).truncated
    monkeypatch.setattr(source, "MAX_PATHS_BYTES", 20)
    assert (len(scan_tree(root).files), scan_tree(root).truncated) == (2, True)
    monkeypatch.setattr(source, "MAX_FOLDERS", 0)
    assert scan_tree(root).truncated


def test_a_very_deep_folder_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tree is too deep for the interpreter's stack."""
    depth = sys.getrecursionlimit() + 100
    monkeypatch.chdir(tmp_path)
    for _ in range(depth):
        os.mkdir("d")  # noqa: PTH102 - a step at a time: pathlib would recurse
        os.chdir("d")
    Path("x.py").touch()
    try:
        assert scan_tree(tmp_path).files == ("d/" * depth + "x.py",)
    finally:
        Path("x.py").unlink()
        for _ in range(depth):
            os.chdir("..")
            os.rmdir("d")  # noqa: PTH106


def test_a_folder_is_checked_before_anything_starts(write_tree: WriteTree) -> None:
    """What cannot be audited is refused with a sentence and the right exit code."""
    root = write_tree({"x.py": "", "empty/readme.md": ""})
    assert check_tree(str(root / "empty" / "..")) == root.resolve()
    refusals: list[tuple[str | Path, str]] = [
        (root / "missing", "does not exist"),
        (root / "x.py", "is a file; name the folder"),
        ("a\0b", "cannot be used as a folder"),
        ("~nobody-of-that-name/x", "cannot be used as a folder"),
        ("x" * 5000, "cannot be used as a folder"),
        ("caf\udce9", "cannot be used as a folder"),
    ]
    for path, says in refusals:
        with pytest.raises(InvalidInput, match=says) as refused:
            check_tree(path)
        assert refused.value.exit_code == 2
        assert str(refused.value).isprintable()
    with pytest.raises(NotFound, match="no Python files") as missing:
        check_tree(root / "empty")
    assert missing.value.exit_code == 3


def test_the_default_tree_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed redis package is real source, and finding it does not load it."""
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "redis"}
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    assert (check_tree(default_tree()) / "client.py").is_file()
    assert "redis" not in sys.modules


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"\xef\xbb\xbfx = 1\r\n", "x = 1\n"),
        (b"# coding: latin-1\ns = '\xe9'\n", "# coding: latin-1\ns = 'é'\n"),
        (b"a\rb\r\nc", "a\nb\nc"),
    ],
)
def test_text_is_read_in_its_declared_encoding(write_tree: WriteTree, data: bytes, text: str) -> None:
    """Byte order marks, declared encodings and foreign line ends are understood."""
    assert read_source(write_tree({"x.py": data}), "x.py") == text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"s = '\xff'\n", "not text in its declared encoding"),
        (b"# coding: nonsense\n", "not text in its declared encoding"),
        (b"# coding: rot13\n", "not text in its declared encoding"),
        (b"# coding: undefined\n", "not text in its declared encoding"),
        ("x = 1\n".encode("utf-16"), "not text in its declared encoding"),
        (b"#" * (source.MAX_FILE_BYTES + 1), "larger than 1,000,000 bytes"),
    ],
)
def test_what_is_no_text_is_said(write_tree: WriteTree, data: bytes, says: str) -> None:
    """A file that cannot be decoded, or is too large, has a reason and raises nothing else."""
    with pytest.raises(Unreadable, match=says):
        read_source(write_tree({"x.py": data}), "x.py")


def test_a_file_that_is_gone_is_said(write_tree: WriteTree) -> None:
    """A file may vanish between the scan and the reading."""
    with pytest.raises(Unreadable, match="No such file"):
        read_source(write_tree({}), "gone.py")
