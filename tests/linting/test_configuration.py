"""The linter's settings in pyproject.toml and .planner.toml."""

from pathlib import Path

import pytest

from planner.diagnostics import Severity
from planner.linting.configuration import (
    LintConfiguration,
    LintConfigurationError,
    configuration_for,
    read_configuration,
)


def read(text: str, name: str = ".planner.toml") -> LintConfiguration | None:
    return read_configuration(text.encode(), f"/repository/{name}")


def test_every_setting_is_read() -> None:
    text = """
[lint]
select = ["KEY"]
extend-select = ["OF101"]
ignore = ["misspelt-key"]
exclude = ["vendor"]
device = "h100-80gb"
fail-level = "error"
baseline = "known.json"
[lint.per-file-ignores]
"*.json" = ["KEY"]
[lint.target-version]
axolotl = "0.12"
"""
    assert read(text) == LintConfiguration(
        path="/repository/.planner.toml",
        select=("KEY",),
        extend_select=("OF101",),
        ignore=("misspelt-key",),
        exclude=("vendor",),
        device="h100-80gb",
        fail_level=Severity.ERROR,
        baseline="known.json",
        per_file_ignores={"*.json": ("KEY",)},
        target_version={"axolotl": (0, 12, 0)},
    )


def test_a_pyproject_without_our_table_is_none_so_that_the_next_one_above_counts() -> None:
    assert read("[tool.other]\nplanner = 1\n", "pyproject.toml") is None


def test_an_empty_planner_toml_is_a_configuration_so_that_it_ends_the_search() -> None:
    assert read("") == LintConfiguration(path="/repository/.planner.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[lint]\nselct = ['KEY']", "lint.selct: there is no such setting; did you mean 'select'?"),
        ("[lint]\nselect = 'KEY'", "lint.select: expected a list of text, found 'KEY'"),
        ("[lint]\nignore = ['KEX001']", "lint.ignore: 'KEX001' names no rule; did you mean 'KEY001'?"),
        ("[lint]\nfail-level = 'bad'", "lint.fail-level: expected one of error, no-op, waste, found 'bad'"),
        ("[lint.target-version]\naxolotl = 1", "expected a table from dialects to releases"),
        ("[lint.target-version]\nfoo = '1'", "expected one of the dialects"),
        ("[lint.target-version]\naxolotl = 'new'", "expected a release such as"),
        ("lint = 3", "lint: expected a table"),
        ("[lint", "not valid TOML"),
    ],
)
def test_a_mistake_names_the_file_the_key_and_the_way_out(text: str, message: str) -> None:
    with pytest.raises(LintConfigurationError) as caught:
        read(text)
    assert str(caught.value).startswith("/repository/.planner.toml: ")
    assert message in str(caught.value)


def test_the_nearest_configuration_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.planner.lint]\nignore = ['KEY001']\nselect = ['KEY']\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / ".planner.toml").write_text("[lint]\nignore = ['KEY002']\n")
    assert configuration_for(str(tmp_path)).ignore == ("KEY001",)
    assert configuration_for(str(inner)).ignore == ("KEY002",)
    assert configuration_for(str(inner)).select == ()


@pytest.mark.parametrize(
    ("matches", "pattern", "path"),
    [
        (True, "vendor", "/repository/vendor/a.yaml"),
        (True, "vendor/", "/repository/x/vendor/a.yaml"),
        (True, "*.json", "/repository/x/ds.json"),
        (True, "x/*.json", "/repository/x/ds.json"),
        (True, "x", "/repository/x/y/ds.json"),
        (True, "x/y", "/repository/x/y/z/ds.json"),
        (False, "y/*.json", "/repository/x/ds.json"),
        (False, "*.json", "/repository/x/ds.yaml"),
        (False, "*", "/elsewhere/a.yaml"),
    ],
)
def test_patterns_are_relative_to_the_configuration_and_cover_directories(
    matches: bool, pattern: str, path: str
) -> None:
    configuration = LintConfiguration(path="/repository/.planner.toml", exclude=(pattern,))
    assert matches == configuration.excludes(path)


def test_a_file_is_spared_by_every_pattern_that_it_matches() -> None:
    configuration = LintConfiguration(
        path="/repository/.planner.toml", per_file_ignores={"*.json": ("KEY",), "x/*": ("OF101",), "y": ("RC",)}
    )
    assert configuration.ignored_in("/repository/x/a.json") == ("KEY", "OF101")
