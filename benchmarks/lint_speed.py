"""How long planner lint takes: over a directory of configs beside yamllint and check-jsonschema, and to start.

    python benchmarks/lint_speed.py CONFIGS [--peers DIRECTORY] [--rounds 9] [--starts 25]

The peers are two linters that check less: yamllint looks at the form of YAML, check-jsonschema holds files against a
schema, here one that allows everything. `--peers` is where their commands are, such as the bin directory of an
environment of their own. All read the same files, those that each of them can. Runs are interleaved, so that a busy
moment of the machine is one for all. Wall and processor time, user and system, are of whole processes: median, least
and most, and the median as a multiple of the first row's.

To start is measured on one small file, beside `python -c "import yaml, click"`, which are what it needs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

SUFFIXES = {".yaml", ".yml", ".json"}  # what yamllint can read, too
SMALL = "base_model: a/b\ndatasets:\n  - path: c/d\nsequence_len: 8192\nmicro_batch_size: 2\n"
PLANNER = [sys.executable, "-c", "from planner.cli import main; main()", "lint"]
LIBRARIES = [sys.executable, "-c", "import yaml, click"]
ROOT = Path(__file__).parent.parent
# Bytecode is kept, as in an installation: or each start would compile what it imports.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class Took(NamedTuple):
    """Of one process."""

    wall_s: float
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path)
    parser.add_argument("--peers", type=Path, help="where yamllint and check-jsonschema are [default: on the PATH]")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--starts", type=int, default=25)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch) / "small.yaml"
        small.write_text(SMALL)
        starts = {"import yaml, click": LIBRARIES, "planner lint": [*PLANNER, "--isolated", str(small)]}
        show(f"One file of {len(SMALL)} bytes", starts, arguments.starts)
        schema = Path(scratch) / "anything.schema.json"
        schema.write_text("{}")
        yamllint = [str(arguments.peers / "yamllint" if arguments.peers else "yamllint"), "-d", "relaxed"]
        checker = [
            str(arguments.peers / "check-jsonschema" if arguments.peers else "check-jsonschema"),
            *("--schemafile", str(schema)),
        ]
        every = sorted(str(path) for path in arguments.configs.rglob("*") if path.is_file())
        files = [path for path in every if Path(path).suffix in SUFFIXES]
        without = unread(yamllint, checker, files)
        files = [path for path in files if path not in without]
        commands = {
            "planner lint": [*PLANNER, "--skip-unknown", *files],
            "yamllint": [*yamllint, *files],
            "check-jsonschema": [*checker, *files],
        }
        show(f"{len(files)} files that all can read, of {len(every)}", commands, arguments.rounds)
        show(
            f"planner lint of the directory, {len(every)} files",
            {"planner lint": [*PLANNER, str(arguments.configs)]},
            5,
        )


def unread(yamllint: Sequence[str], checker: Sequence[str], files: Sequence[str]) -> set[str]:
    """The files that one of the peers cannot read."""
    said = subprocess.run([*yamllint, "-f", "parsable", *files], capture_output=True, text=True, check=False).stdout
    broken = {line.split(":")[0] for line in said.splitlines() if line.endswith("(syntax)")}
    checked = subprocess.run([*checker, "-o", "json", *files], capture_output=True, text=True, check=False).stdout
    return broken | {error["filename"] for error in json.loads(checked).get("parse_errors", ())}


def show(title: str, commands: Mapping[str, Sequence[str]], rounds: int) -> None:
    took: dict[str, list[Took]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            one = run(command)
            took[name] += [one] if number else []  # the first round fills caches
    first = next(iter(commands))
    base_wall_s, base_cpu_s = (median(values) for values in zip(*took[first], strict=True))
    print(f"{title}; {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'':<20}  {'wall, ms':>22}          {'processor, ms':>22}")
    for name, times in took.items():
        wall_s, cpu_s = zip(*times, strict=True)
        print(
            f"{name:<20}  {spread(wall_s)} {median(wall_s) / base_wall_s:6.2f}x  "
            f"{spread(cpu_s)} {median(cpu_s) / base_cpu_s:6.2f}x",
            flush=True,
        )
    print()


def spread(times_s: Sequence[float]) -> str:
    """Median, and the least and the most, in ms."""
    middle, least, most = (1e3 * value for value in (median(times_s), min(times_s), max(times_s)))
    return f"{middle:7,.0f} ({least:,.0f} to {most:,.0f})".rjust(24)


def run(command: Sequence[str]) -> Took:
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)  # it is waited for: Popen need not
    if process.returncode not in (0, 1):  # 1 is what linters exit with when they find something
        raise SystemExit(f"{command[0]} ended with exit status {process.returncode}")
    return Took(wall_s, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    main()
