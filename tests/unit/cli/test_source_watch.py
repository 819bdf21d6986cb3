"""Changes of source in watched folders: all of them, nothing else, and none lost when the folders change."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.app import main
from orchestrator.cli.source_watch import SourceWatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[SourceWatch]:
    """A watch of the folder `src`."""
    (tmp_path / "src" / "below").mkdir(parents=True)
    with SourceWatch([tmp_path / "src"]) as watch:
        yield watch


def seen(watch: SourceWatch, *names: str) -> set[str]:
    """The files of which changes are told, until all of these were, or for five seconds."""
    found, deadline_s = set[str](), time.monotonic() + 5
    while time.monotonic() < deadline_s and not found >= set(names):
        found |= {path.name for path in watch.poll()}
    return found


def test_changed_new_and_removed(watch: SourceWatch, tmp_path: Path) -> None:
    """A file that comes, changes, is replaced by another one, or goes is told; several at once too."""
    file = tmp_path / "src" / "one.py"
    file.write_text("1")
    (tmp_path / "src" / "two.py").write_text("2")
    assert seen(watch, "one.py", "two.py") == {"one.py", "two.py"}
    file.write_text("3")
    assert "one.py" in seen(watch, "one.py")
    (tmp_path / "draft").write_text("4")
    (tmp_path / "draft").replace(file)
    assert "one.py" in seen(watch, "one.py")
    file.unlink()
    assert "one.py" in seen(watch, "one.py")


def test_what_is_not_source(watch: SourceWatch, tmp_path: Path) -> None:
    """Other files, those of editors, and those of folders below are passed over."""
    for name in ("notes.txt", ".#one.py", ".one.py.swp", "one.py~", "below/deep.py"):
        (tmp_path / "src" / name).touch()
    (tmp_path / "src" / "real.py").touch()
    assert seen(watch, "real.py") == {"real.py"}


def test_a_file_that_is_always_written_does_not_hold_it_up(watch: SourceWatch, tmp_path: Path) -> None:
    """Each look comes back in time, whatever else goes on in the folder."""
    ended = threading.Event()

    def scribble() -> None:
        while not ended.wait(0.01):
            (tmp_path / "src" / "log.txt").write_text(str(time.monotonic()))

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        began_s = time.monotonic()
        watch.poll()
        assert time.monotonic() - began_s < 3
    finally:
        ended.set()
        writer.join()


def test_other_folders(watch: SourceWatch, tmp_path: Path) -> None:
    """From a change of folders on the new ones are watched, and what happened meanwhile in the old ones is told."""
    (tmp_path / "other").mkdir()
    (tmp_path / "src" / "last.py").touch()
    told = watch.watch([tmp_path / "other", tmp_path / "missing"])
    assert {path.name for path in told} == {"last.py"}
    (tmp_path / "src" / "unseen.py").touch()
    (tmp_path / "other" / "new.py").touch()
    assert seen(watch, "new.py") == {"new.py"}


def test_a_folder_that_was_made_anew(watch: SourceWatch, tmp_path: Path) -> None:
    """A folder that was deleted and made again, as by a checkout of another branch, is watched again."""
    folder = tmp_path / "src"
    folder.rename(tmp_path / "former")
    folder.mkdir()
    watch.watch([folder])
    (folder / "again.py").touch()
    assert seen(watch, "again.py") == {"again.py"}


def test_without_the_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--reload` without watchfiles is refused with what to type, before anything is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for typed in ("up a:b --reload", "worker run a:b --reload"):
        assert main(typed.split()) == 78
        assert "pip install 'redis-orchestrator[reload]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
