"""Which files paths mean."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from planner.linting.discovery import discover


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with files that count and files that do not, as the current directory."""
    for name in (
        "a.yaml",
        "b.yml",
        "c/d.json",
        "c/e.toml",
        "c/run.sh",
        "notes.md",
        "ignored.yaml",
        "c/ignored.yaml",
        "out/x.yaml",
        ".hidden/x.yaml",
        ".git/config.yaml",
        "node_modules/p/x.json",
        "env/lib/x.yaml",
        "env/pyvenv.cfg",
        "UPPER.YAML",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a: 1\n")
    (tmp_path / ".gitignore").write_text("ignored.yaml\n/out/\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(paths: Iterable[str]) -> list[str]:
    return [file.path for file in discover(paths).files]


def test_a_directory_means_the_files_in_it_that_may_be_configs_sorted(tree: Path) -> None:
    assert ["UPPER.YAML", "a.yaml", "b.yml", "c/d.json", "c/e.toml", "c/run.sh"] == found(["."])
    assert ["c/d.json", "c/e.toml", "c/run.sh"] == found(["c/"])
    assert [str(tree / "c" / name) for name in ("d.json", "e.toml", "run.sh")] == found([str(tree / "c")])


def test_a_file_that_is_named_counts_whatever_leaves_it_out(tree: Path) -> None:
    paths = ["ignored.yaml", ".hidden/x.yaml", "notes.md", "missing.yaml"]
    assert paths == found(paths)
    assert all(file.is_named for file in discover(paths).files)
    assert not any(file.is_named for file in discover(["."]).files)


def test_a_directory_that_is_named_is_entered_though_hidden(tree: Path) -> None:
    assert [".hidden/x.yaml"] == found([".hidden"])


def test_each_file_comes_once_where_it_came_first(tree: Path) -> None:
    assert ["c/d.json", "UPPER.YAML", "a.yaml"] == found(["c/d.json", ".", "./c/d.json", str(tree / "a.yaml")])[:3]
    assert 6 == len(found([".", "c", "a.yaml"]))


def test_links_to_directories_are_not_followed_so_that_loops_end(tree: Path) -> None:
    (tree / "loop").symlink_to(tree)
    (tree / "c" / "up").symlink_to("..")
    (tree / "self").symlink_to("self")
    (tree / "self.yaml").symlink_to("self.yaml")
    (tree / "linked.yaml").symlink_to("a.yaml")
    assert ["UPPER.YAML", "a.yaml", "b.yml", "c/d.json", "c/e.toml", "c/run.sh", "linked.yaml"] == found(["."])
    assert "loop/a.yaml" in found(["loop"])  # a link that is named is what its target is


def test_what_is_no_file_is_left_out_of_a_directory(tree: Path) -> None:
    os.mkfifo(tree / "pipe.yaml")
    (tree / "directory.yaml").mkdir()
    assert ["UPPER.YAML", "a.yaml"] == found(["."])[:2]
    assert not {"pipe.yaml", "directory.yaml"} & set(found(["."]))


def test_any_depth_of_directories_is_walked(tmp_path: Path) -> None:
    inner = tmp_path
    for _ in range(300):
        inner /= "d"
    inner.mkdir(parents=True)
    (inner / "a.yaml").write_text("")
    assert [str(inner / "a.yaml")] == found([str(tmp_path)])


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_directory_that_cannot_be_listed_is_said(tree: Path) -> None:
    (tree / "c").chmod(0)
    try:
        assert ["c: cannot be listed: Permission denied"] == [str(error) for error in discover(["."]).unreadable]
    finally:
        (tree / "c").chmod(0o755)
