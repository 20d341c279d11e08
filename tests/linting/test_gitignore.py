"""What .gitignore leaves out, beside what git itself says."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.linting.gitignore import ignores_at, is_ignored

# Pattern, path below the file, whether that is a directory, whether it is ignored: from gitignore(5).
CASES = [
    ("a.yaml", "a.yaml", False, True),
    ("a.yaml", "x/y/a.yaml", False, True),
    ("/a.yaml", "x/a.yaml", False, False),
    ("/a.yaml", "a.yaml", False, True),
    ("x/a.yaml", "x/a.yaml", False, True),
    ("x/a.yaml", "y/x/a.yaml", False, False),
    ("build/", "build", True, True),
    ("build/", "build", False, False),
    ("build/", "x/build", True, True),
    ("*.yaml", "x/a.yaml", False, True),
    ("x/*.yaml", "x/y/a.yaml", False, False),
    ("**/a.yaml", "x/y/a.yaml", False, True),
    ("**/y/a.yaml", "x/y/a.yaml", False, True),
    ("x/**", "x/y/a.yaml", False, True),
    ("x/**", "x", True, False),
    ("x/**/a.yaml", "x/a.yaml", False, True),
    ("x/**/a.yaml", "x/y/z/a.yaml", False, True),
    ("?.yaml", "a.yaml", False, True),
    ("?.yaml", "ab.yaml", False, False),
    ("[a-c].yaml", "b.yaml", False, True),
    ("[!a-c].yaml", "b.yaml", False, False),
    ("[]-]x", "]x", False, True),
    ("# a", "# a", False, False),
    (r"\# a", "# a", False, True),
    (r"\!a", "!a", False, True),
    ("a   ", "a", False, True),
    ("a\\ ", "a ", False, True),
    ("", "a", False, False),
    ("/", "a", True, False),
    ("[z-a]", "b", False, False),
    ("a.*", "aXyaml", False, False),
    ("[a", "[a", False, False),
    ("[]*?", "a", False, False),
    ("a//", "a", True, False),
    ("//a", "a", True, False),
]


def ignored(directory: Path, path: str, *, is_directory: bool) -> bool:
    return is_ignored(ignores_at(str(directory)), str(directory / path), is_directory=is_directory)


@pytest.mark.parametrize(("pattern", "path", "is_directory", "expected"), CASES)
def test_a_pattern_means_what_git_says_it_means(
    tmp_path: Path, pattern: str, path: str, is_directory: bool, expected: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text(f"{pattern}\n")
    assert expected == ignored(tmp_path, path, is_directory=is_directory)


def test_the_last_pattern_that_matches_decides_and_nearer_files_go_first(tmp_path: Path) -> None:
    (tmp_path / ".git" / "info").mkdir(parents=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("mine.yaml\n")
    (tmp_path / ".gitignore").write_text("*.yaml\n!keep.yaml\nkeep.yaml\n!keep.yaml\r\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / ".gitignore").write_text("keep.yaml\n!other.yaml\n")
    assert ignored(tmp_path, "a.yaml", is_directory=False)
    assert not ignored(tmp_path, "keep.yaml", is_directory=False)
    assert ignored(inner, "keep.yaml", is_directory=False)
    assert not ignored(inner, "other.yaml", is_directory=False)
    (tmp_path / ".gitignore").write_text("")
    assert ignored(inner, "mine.yaml", is_directory=False)


def test_files_above_the_repository_do_not_count(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*\n")
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    assert not ignored(repository, "a.yaml", is_directory=False)


def test_a_directory_in_no_repository_has_its_own_file_heeded_only(tmp_path: Path) -> None:
    if any((above / ".git").exists() for above in tmp_path.parents):
        pytest.skip("the directory of the tests is in a repository")
    (tmp_path / ".gitignore").write_text("a.yaml\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    assert ignored(tmp_path, "a.yaml", is_directory=False)
    assert not ignored(inner, "a.yaml", is_directory=False)


patterns = st.lists(
    st.text(alphabet="ab/*?[]!\\-# .", min_size=1, max_size=8).filter(lambda text: "[:" not in text),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@given(patterns)
def test_git_agrees_on_any_patterns(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    directory = tmp_path_factory.getbasetemp() / "agreement"
    if not directory.exists():
        directory.mkdir()
        subprocess.run(["git", "init", "-q", str(directory)], check=True)
    (directory / ".gitignore").write_text("\n".join(lines) + "\n")
    paths = ["a", "b", "ab", "a.b", "a/b", "b/a", "a/b/a", "a-b", "b/b/b/a", "!a", "#a"]
    asked = "\0".join(paths) + "\0"
    command = ["git", "-C", str(directory), "check-ignore", "--no-index", "--stdin", "-z"]
    said = subprocess.run(command, input=asked, capture_output=True, text=True, check=False).stdout.split("\0")
    ours = [path for path in paths if whole_ignored(directory, path)]
    assert sorted(filter(None, said)) == sorted(ours)


def whole_ignored(directory: Path, path: str) -> bool:
    """Whether a path or a directory above it is ignored, as git counts it."""
    parts = path.split("/")
    outer = ["/".join(parts[:end]) for end in range(1, len(parts))]
    return any(ignored(directory, each, is_directory=True) for each in outer) or ignored(
        directory, path, is_directory=False
    )
