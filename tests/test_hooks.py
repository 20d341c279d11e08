"""The hooks for pre-commit, run by pre-commit itself in a repository that uses them. It installs them from here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import planner

ROOT = Path(planner.__file__).parent.parent
# What an installation is made from.
PARTS = (".pre-commit-hooks.yaml", "LICENSE", "README.md", "cli.py", "planner", "pyproject.toml", "rules", "schemas")
HEAD = "base_model: a/b\ndatasets:\n  - path: c/d  # ours\nmicro_batch_size: 2\n"
TYPO, MENDED = "gradient_accumulation_stepss: 2\n", "gradient_accumulation_steps: 2\n"
REFUSED = "activation_offloading: true\n"  # without checkpointing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pre-commit") is None, reason="pre-commit is not installed"),
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="this is no checkout"),
]


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHONPATH"))}
    environment = {**kept, "PRE_COMMIT_HOME": str(directory.parent / "home"), "PRE_COMMIT_COLOR": "never"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def commit(directory: Path) -> str:
    """Commits all that is in a directory as a repository; returns the commit."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        run(directory, *git, *command).check_returncode()
    return run(directory, "git", "rev-parse", "HEAD").stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that uses the hooks of a copy of this one as it is now."""
    directory = tmp_path_factory.mktemp("hooks")
    hooks, repository = directory / "planner", directory / "mine"
    hooks.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, hooks / part, **({"symlinks": True} if copy is shutil.copytree else {}))
    revision = commit(hooks)
    repository.mkdir()
    (repository / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {hooks}\n    rev: {revision}\n    hooks: [{{id: planner-fix}}, {{id: planner-lint}}]\n"
    )
    (repository / "compose.yaml").write_text("services: {}\n")
    (repository / "template.yaml").write_text(HEAD + "{% if x %}\nlora_r: 8\n{% endif %}\n")
    (repository / "package.json").write_text('{"name": "x"}')
    (repository / "notes.md").write_text(TYPO)
    commit(repository)
    run(repository, "pre-commit", "install-hooks").check_returncode()
    return repository


def run_hooks(repository: Path, config: str) -> subprocess.CompletedProcess[str]:
    """What pre-commit does with a training config beside the files of others."""
    (repository / "train.yaml").write_text(config)
    run(repository, "git", "add", "-A").check_returncode()
    return run(repository, "pre-commit", "run", "--all-files")


def test_one_hook_mends_and_the_other_reports_what_is_left(repository: Path) -> None:
    first = run_hooks(repository, HEAD + TYPO + REFUSED)
    assert 1 == first.returncode
    assert HEAD + MENDED + REFUSED == (repository / "train.yaml").read_text()
    assert "- files were modified by this hook" in first.stdout
    assert "error[OF101]" in first.stdout
    assert "--> train.yaml:6:" in first.stdout
    assert not any(name in first.stdout + first.stderr for name in ("compose.yaml", "template.yaml", "package.json"))


def test_what_cannot_be_mended_fails_one_hook_alone(repository: Path) -> None:
    assert ["Passed", "Failed"] == outcomes(run_hooks(repository, HEAD + REFUSED))


def test_a_config_without_findings_passes(repository: Path) -> None:
    found = run_hooks(repository, HEAD + MENDED)
    assert (0, ["Passed", "Passed"]) == (found.returncode, outcomes(found))


def outcomes(found: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.rpartition(".")[2] for line in found.stdout.splitlines() if "...." in line]


def test_a_broken_config_fails_the_hook_with_its_line(repository: Path) -> None:
    broken = run_hooks(repository, HEAD + "x: [1\ny: 2\n")
    assert 1 == broken.returncode
    assert "train.yaml:6: not valid YAML" in broken.stdout


def test_the_environment_of_the_hooks_has_neither_torch_nor_a_solver(repository: Path) -> None:
    (python,) = (repository.parent / "home").glob("repo*/py_env-*/bin/python")
    code = "from importlib.util import find_spec as f; print(*(n for n in ('torch', 'ortools', 'networkx') if f(n)))"
    assert "\n" == run(repository, str(python), "-c", code).stdout
    assert Path(sys.prefix) not in python.parents
