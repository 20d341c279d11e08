"""Sends a server of its own what its OpenAPI document allows, and what it does not, and counts what comes back.

    ./dev/env python -m benchmarks.service_fuzz --examples 250

It needs schemathesis 4 (pip install schemathesis), whose command may be in another environment: --schemathesis PATH. It
ends with status 1 where an answer is a fault of the server (5xx), or is not as the document says.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.service.processes import serving, settings_for

CHECKS = "not_a_server_error,content_type_conformance,response_headers_conformance"


def main() -> int:
    """Runs it; the exit status of schemathesis."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=250, help="for each of the endpoints, and each kind of them")
    parser.add_argument("--schemathesis", default="schemathesis", help="its command")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_for(f"sqlite:///{folder}/fuzz.db", longest_stream_s=1.0)
        with serving(settings, Path(folder) / "log") as server:
            command = [arguments.schemathesis, "run", f"http://127.0.0.1:{server.port}/openapi.json"]
            command += ["--checks", CHECKS, "--mode", "all", "--max-examples", str(arguments.examples)]
            command += ["--seed", str(arguments.seed), "--request-timeout", "60", "--continue-on-failure"]
            status = subprocess.run(command, check=False, cwd=folder).returncode
        lines = server.logged().splitlines()
    statuses = Counter(line.rsplit('" ', 1)[1].split()[0] for line in lines if "HTTP/1.1" in line and '" ' in line)
    print(f"{statuses.total()} requests: {dict(sorted(statuses.items()))}")
    print("\n".join(line for line in lines if "fault" in line or "Traceback" in line))
    return status


if __name__ == "__main__":
    sys.exit(main())
