"""Configs that a config names: where they are looked for, what is never opened, and what is said of them."""

import os
from pathlib import Path

import pytest

from planner.configs.tree import SourceFormat
from planner.diagnostics import Finding
from planner.linting.engine import Options, configs_of, lint_text
from planner.linting.sources import parse

ARGUMENTS = "output_dir: out\nnum_train_epochs: 1\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 4\n"
ZERO = '{"zero_optimization": {"stage": 3, "overlap_com": true}, "train_batch_size": "auto"}'


def named(path: Path, value: str) -> list[str]:
    """The paths of the configs that a config at a path names."""
    document = parse(ARGUMENTS + f"deepspeed: {value}\n", str(path), SourceFormat.YAML)
    [config] = configs_of(document, Options())
    return [linked.document.path for linked in config.linked]


def findings(path: Path, text: str) -> tuple[Finding, ...]:
    found = lint_text(text, str(path), Options())
    assert found is not None
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a folder of configs, and a file outside of it."""
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    (root / "configs" / "sft").mkdir(parents=True)
    (root / "deepspeed").mkdir()
    (root / "deepspeed" / "zero3.json").write_text(ZERO)
    (tmp_path / "outside.json").write_text(ZERO)
    return root


def test_a_file_is_found_beside_the_config_and_from_each_folder_up_to_the_repository(repository: Path) -> None:
    config = repository / "configs" / "sft" / "a.yaml"
    assert [str(repository / "deepspeed" / "zero3.json")] == named(config, "deepspeed/zero3.json")
    assert [str(repository / "deepspeed" / "zero3.json")] == named(config, "../../deepspeed/zero3.json")
    (repository / "configs" / "sft" / "near.json").write_text(ZERO)
    assert [str(repository / "configs" / "sft" / "near.json")] == named(config, "near.json")


def test_a_relative_path_to_the_config_makes_one_to_the_file(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    assert ["deepspeed/zero3.json"] == named(Path("configs/a.yaml"), "deepspeed/zero3.json")


@pytest.mark.parametrize(
    "value",
    [
        "../../../outside.json",
        "{outside}",
        "missing.json",
        "deepspeed",  # a folder
        "deepspeed/zero3.conf",  # no format that is known
        "'{\"zero_optimization\": {}}'",  # JSON as text
        "${oc.env:X}",
        "'\\0.json'",
        "a.yaml",  # the config itself
        "x" * 5000 + ".json",
        "loop.json",
        "pipe.json",
        "link.json",
        "broken.json",
        "list.json",
    ],
)
def test_what_is_outside_missing_or_no_config_is_not_opened(repository: Path, value: str) -> None:
    folder = repository / "configs"
    (folder / "a.yaml").write_text(ARGUMENTS)
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "link.json").symlink_to(repository.parent / "outside.json")
    os.mkfifo(folder / "pipe.json")
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")
    assert [] == named(
        folder / "a.yaml", value.format(outside=repository.parent / "outside.json") if "{outside" in value else value
    )


def test_without_a_repository_only_the_configs_own_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(ZERO)
    (tmp_path / "configs").mkdir()
    assert [] == named(tmp_path / "configs" / "a.yaml", "zero3.json")
    assert [str(tmp_path / "zero3.json")] == named(tmp_path / "a.yaml", "zero3.json")


def test_a_finding_in_a_named_file_is_at_its_place_there(repository: Path) -> None:
    config = repository / "configs" / "a.yaml"
    [found] = findings(config, ARGUMENTS + "deepspeed: deepspeed/zero3.json\n")
    place = found.report.place
    assert (str(repository / "deepspeed" / "zero3.json"), "zero_optimization.overlap_com") == (
        place.document.path,
        place.key,
    )
    assert (1, 36) == place.document.position(place.start)


def test_a_finding_in_an_inline_config_stands_with_the_others_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        "fp16: true\nbf16: true\ndeepspeed:\n  zero_optimization:\n    stage: 2\n    overlap_com: true\n"
        + ARGUMENTS
        + "load_best_model_at_end: true\n"
    )
    found = findings(tmp_path / "a.yaml", text)
    assert ["PR201", "KEY003", "EV201"] == [finding.rule.code for finding in found]
    assert [1, 6, 11] == [f.report.place.document.position(f.report.place.start)[0] for f in found]


def test_comments_in_the_named_file_silence_what_is_found_there(repository: Path) -> None:
    linked = repository / "configs" / "zero3.json"
    linked.write_text("// planner: ignore-file[KEY003] tried\n" + ZERO)
    assert () == findings(repository / "configs" / "a.yaml", ARGUMENTS + "deepspeed: zero3.json\n")


def test_an_accelerate_config_names_a_deepspeed_file_too(repository: Path) -> None:
    (repository / "configs" / "zero3.json").write_text(ZERO)
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: zero3.json}\n"
    assert ["KEY003"] == [found.rule.code for found in findings(repository / "configs" / "a.yaml", text)]


def test_a_file_that_names_itself_ends(tmp_path: Path) -> None:
    text = '{"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "a.json"}}'
    (tmp_path / "a.json").write_text(text)
    assert () == findings(tmp_path / "a.json", text)
