"""A solver for tests of the queue and of limits: it says what the real one says, in a moment and without torch.

What it does follows from the job's name. ``python -m tests.service.stub work PARENT`` is a worker that uses it.
"""

import json
import os
import signal
import subprocess
import sys
import time

from planner.service.confinement import confine, die_with

SECONDS = 0.2  # long enough to be killed in


def solve(job: dict[str, object], name: str) -> None:
    """Does what the name says, and brings a result where it comes so far."""
    confine(memory_bytes=int(str(job["memory_bytes"])), cpu_s=float(str(job["cpu_s"])))
    _say({"progress": f"in process {os.getpid()}"})
    match name:
        case "greedy":
            bytearray(100 * 10**9)
        case "busy":
            while True:
                pass
        case "endless":
            time.sleep(3600)
        case "with a child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            _say({"progress": f"and {child.pid}"})
            time.sleep(3600)
        case "survived by a child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            os.kill(os.getpid(), signal.SIGKILL)
        case "deadly":
            os.kill(os.getppid(), signal.SIGKILL)
        case "broken":
            sys.exit("/secret/place: no such thing\n\x1b[31mplanner: all is well")
        case "loud":
            for _ in range(1000):
                sys.stderr.write("x" * 100_000)
        case _:
            time.sleep(SECONDS)
    _say({"result": {"summary": {"name": name}, "text": "", "plan": "plan\n", "report": "<p>"}})


def _say(record: dict[str, object]) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    die_with(int(sys.argv[-1]))
    if sys.argv[1] == "work":
        from planner.service.processes import SETTINGS, work
        from planner.service.settings import from_text

        settings = from_text(os.environ[SETTINGS])
        work(settings, lambda line: print(line, flush=True), (sys.executable, "-m", "tests.service.stub"))
    else:
        asked = json.load(sys.stdin)
        solve(asked, asked["request"]["name"])
