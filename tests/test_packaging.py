"""What an installation consists of, and what importing it costs."""

import subprocess
import sys
from pathlib import Path

import planner

ROOT = Path(planner.__file__).parent.parent


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_top_level_directories_are_reached_only_through_the_package() -> None:
    # Of a whole run, so this also sees what the other tests imported.
    assert not {"rules", "schemas", "cli"} & set(sys.modules)
    run_python(
        "import sys, planner.rules, planner.schemas\n"
        "assert not {'rules', 'schemas', 'cli'} & set(sys.modules), 'bare names were imported'"
    )


def test_the_symlinks_in_the_package_are_relative_and_lead_to_the_top_level() -> None:
    for name in ("cli.py", "rules", "schemas"):
        link = ROOT / "planner" / name
        if (ROOT / "pyproject.toml").is_file():  # in an installed wheel they are the things themselves
            assert Path("..") / name == link.readlink()


def test_reading_a_spec_needs_neither_torch_nor_a_solver() -> None:
    heavy = run_python(
        "import sys, planner\n"
        "from planner.spec import from_mapping\n"
        "from planner.device import load_device\n"
        "from_mapping({'model': {'preset': 'gpt2'}, 'batch': {'micro_batch': 1}})\n"
        "print(*sorted({'torch', 'transformers', 'ortools', 'networkx', 'numpy'} & set(sys.modules)))"
    )
    assert heavy.strip() == ""


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = run_python("import sys, planner\nprint(*[name for name in sys.modules if name.startswith('planner.')])")
    assert loaded.strip() == ""


def test_the_public_names_are_there_on_first_use() -> None:
    for name in planner.__all__:
        assert getattr(planner, name) is not None
