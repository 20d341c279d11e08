"""`planner solve --server`: the same answer as without, and what is said when there is none."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")
pytest.importorskip("ortools")

from planner.cli import main
from planner.plan import load_plan
from planner.service import client as client_module
from planner.service.client import Client, ServerError, news
from planner.service.store.jobs import JobStatus
from tests.reports import small_plan
from tests.service.processes import COMMAND
from tests.service.servers import ROOT, Server, leased, serving, small_result

SPEC = "model: {preset: gpt2}\nbatch: {micro_batch: 1, sequence_length: 64}\ndevice: rtx-4090\n"
# What a base installation does not have.
ABSENT = ("torch", "ortools", "networkx", "numpy", "fastapi", "sqlalchemy", "uvicorn")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--tokens") as found:
        yield found


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Path:
    """A spec that nobody has asked about yet, in the directory that commands run in, with a token at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANNER_TOKEN", server.token)
    path = tmp_path / "model.yaml"
    path.write_text(SPEC.replace("1,", f"{time.time_ns() % 10**9 + 1},"))
    return path


def solve(spec: Path | str, server: str, *options: str, budget: str = "1GB") -> Result:
    return CliRunner().invoke(main, ["solve", str(spec), "--budget", budget, "--server", server, *options])


def solved(spec: Path, server: Server, *options: str) -> Result:
    """What the command comes to while another solves, reports twice and is done."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solve, spec, server.url, *options)
        lease = leased(server.jobs)
        server.jobs.renew(lease, {"lines": ["traced", "found\x1b[2J"]})
        until = time.monotonic() + 1.5  # longer than the server waits between looks for news
        while time.monotonic() < until:
            time.sleep(0.1)
        server.jobs.renew(lease, {"lines": ["found\x1b[2J", "better"]})
        server.jobs.finish(lease, small_result())
        return running.result()


def test_the_plan_is_written_and_the_text_printed_as_if_it_was_solved_for_here(spec: Path, server: Server) -> None:
    found = solved(spec, server)

    assert "small on a device\n [31mred\n\nPlan       model.plan.yaml\n" == found.stdout
    assert 0 == found.exit_code
    said = found.stderr.splitlines()
    assert said[0].startswith(f"planner: asked {server.url}/plans/")
    assert ["planner: traced", "planner: found [2J"] == [line for line in said if "traced" in line or "found" in line]
    plan = load_plan("model.plan.yaml")
    assert "model.yaml" == plan.model.spec
    assert set(small_plan().decisions) == set(plan.decisions)


def test_json_is_one_object_that_names_the_file_that_was_written(spec: Path, server: Server) -> None:
    found = solved(spec, server, "--json", "--quiet", "-o", "other.yaml")

    assert {**small_result().summary, "plan": "other.yaml"} == json.loads(found.stdout)
    assert "" == found.stderr
    assert Path("other.yaml").is_file()


def test_the_plan_alone_can_go_to_stdout(spec: Path, server: Server) -> None:
    found = solved(spec, server, "-o", "-")

    Path("printed.yaml").write_text(found.stdout)
    assert small_plan().budget_bytes == load_plan("printed.yaml").budget_bytes
    assert not Path("model.plan.yaml").exists()


def test_that_no_plan_fits_is_said_as_it_is_here(spec: Path, server: Server) -> None:
    answer = {
        "status": "infeasible",
        "budget_bytes": 3,
        "static_bytes": {"total": 1},
        "smallest_peak_bytes": 5,
        "smallest_peak_at": "backward",
        "bound_bytes": 4,
        "ways_out": [{"change": "batch.micro_batch: 1", "effect": "less", "peak_bytes": 2, "fits": True}],
    }
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solve, spec, server.url)
        lease = leased(server.jobs)
        server.jobs.fail(lease, {"detail": "no plan fits: 3 B", "answer": answer, "text": "no plan\nfits"})
        found = running.result()

    assert "no plan\nfits\n" == found.stdout
    assert "planner: error: no plan fits: 3 B" == found.stderr.splitlines()[-1]
    assert 1 == found.exit_code
    assert not Path("model.plan.yaml").exists()


def test_a_job_that_failed_is_an_error_in_one_line(spec: Path, server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solve, spec, server.url)
        server.jobs.fail(leased(server.jobs), {"detail": "model.yaml:1: model: cannot be\ntraced"})
        found = running.result()

    assert f"planner: error: {spec}:1: model: cannot be traced" == found.stderr.splitlines()[-1]
    assert 2 == found.exit_code


def test_a_job_that_someone_else_took_back_is_no_plan(spec: Path, server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solve, spec, server.url)
        lease = leased(server.jobs)
        server.jobs.cancel(lease.job.id)
        assert JobStatus.CANCELLED is server.jobs.give_back(lease)
        found = running.result()

    assert "planner: error: the job was taken back" in found.stderr
    assert 2 == found.exit_code


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "model: {factory: 'os:system'}",
            "model.yaml:1: model.factory: functions and files of the server are not open",
        ),
        ("model: {preset: gtp2}", "model.yaml:1: model.preset: unknown preset 'gtp2'"),
    ],
)
def test_what_is_wrong_with_a_spec_is_said_with_its_place(spec: Path, server: Server, change: str, words: str) -> None:
    spec.write_text(SPEC.replace("model: {preset: gpt2}", change))

    found = solve(spec, server.url)

    assert 1 == len(found.stderr.splitlines())
    assert f"{spec.parent}/{words}" in found.stderr
    assert 2 == found.exit_code


def test_a_name_that_the_service_does_not_take_is_the_users_own_in_errors(spec: Path, server: Server) -> None:
    odd = spec.with_name("ünd 'odd'.yaml")
    odd.write_text("model: {factory: 'os:system'}\nbatch: {micro_batch: 1}\n")

    assert f"{odd}:1: model.factory" in solve(odd, server.url).stderr


def test_without_a_token_or_with_a_wrong_one_it_says_how_to_give_one(
    spec: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANNER_TOKEN")
    Path("wrong").write_text("planner_nothing\n")
    Path("right").write_text(f"{server.token}\n")

    for options in ((), ("--token-file", "wrong")):
        found = solve(spec, server.url, *options)
        assert "a token is needed" in found.stderr
        assert "PLANNER_TOKEN" in found.stderr
        assert 2 == found.exit_code
    assert 0 == solved(spec, server, "--token-file", "right").exit_code


@pytest.mark.parametrize(
    "address", ["planner.example.org", "ftp://localhost", "http://", "http://[::1", "http://localhost/?a=b", ""]
)
def test_what_is_no_address_is_refused_before_anything_is_sent(spec: Path, address: str) -> None:
    found = solve(spec, address)

    assert "expected the address of a service" in found.stderr
    assert 2 == found.exit_code


def test_a_server_that_is_not_there_is_an_error_in_one_line(spec: Path) -> None:
    found = solve(spec, "http://127.0.0.1:9")  # the port of "discard", on which nothing listens

    assert 1 == len(found.stderr.splitlines())
    assert "planner serve" in found.stderr


def test_options_that_no_service_knows_are_refused(spec: Path, server: Server) -> None:
    for options in (["--objective", "throughput"], ["--no-advice"]):
        assert "--server goes with neither" in solve(spec, server.url, *options).stderr
    assert (
        "needs --server"
        in CliRunner().invoke(main, ["solve", str(spec), "--budget", "1GB", "--token-file", "x"]).stderr
    )


class Impostor(BaseHTTPRequestHandler):
    """Answers to all that is asked the same way, and remembers what it was sent."""

    status = 200
    headers_out: ClassVar[Mapping[str, str]] = {}
    body = b""
    seen: ClassVar[list[Mapping[str, str]]] = []

    def do_POST(self) -> None:
        self.seen.append(dict(self.headers))
        self.send_response(self.status)
        for name, value in self.headers_out.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


@pytest.fixture
def impostor() -> Iterator[tuple[str, type[Impostor]]]:
    class Handler(Impostor):
        seen: ClassVar[list[Mapping[str, str]]] = []

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", Handler
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.mark.parametrize("body", [b"<h1>Welcome</h1>", b"[]", b"{}", b"null", b"\xff", b'{"id": '])
def test_what_is_no_planner_service_is_called_that(impostor: tuple[str, type[Impostor]], body: bytes) -> None:
    url, handler = impostor
    handler.body = body

    with pytest.raises(ServerError, match="is no planner service"):
        Client(url).ask({})


def test_no_redirect_is_followed_so_that_the_token_stays_with_its_server(impostor: tuple[str, type[Impostor]]) -> None:
    url, handler = impostor
    handler.status, handler.headers_out = 308, {"location": f"{url}/elsewhere"}

    with pytest.raises(ServerError, match=f"has moved to {url}/elsewhere"):
        Client(url, "secret").ask({})
    assert 1 == len(handler.seen)


def test_a_server_that_stays_away_while_it_solves_is_given_up_with_the_way_back(
    impostor: tuple[str, type[Impostor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = impostor
    handler.status = 503
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(client_module, "RETRY_S", 0.1)

    with pytest.raises(ServerError, match=f"the job goes on: {url}/plans/abc"):
        list(Client(url).watch("abc"))
    assert len(handler.seen) > 1


def test_a_stream_that_breaks_is_taken_up_again(
    impostor: tuple[str, type[Impostor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = impostor
    handler.body = b'event: job\ndata: {"status": "running"}\n\n'
    monkeypatch.setattr(client_module, "RETRY_S", 0.01)

    watched = Client(url).watch("abc")
    assert ["running", "running"] == [next(watched)["status"] for _ in range(2)]
    handler.body = b': \n\ndata: {"status": "done"}\n\n'
    assert "done" == [job["status"] for job in watched][-1]


def test_an_answer_without_end_is_not_read_to_it(
    impostor: tuple[str, type[Impostor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = impostor
    handler.body = b"x" * 1001
    monkeypatch.setattr(client_module, "_MOST_BYTES", 1000)

    with pytest.raises(ServerError, match="more than 1,000 bytes"):
        Client(url).plan("abc")


def test_a_token_in_which_a_header_could_end_is_refused() -> None:
    with pytest.raises(ServerError, match="characters"):
        Client("http://localhost", "a\r\nb: c")


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(0, 12), st.integers(1, 5))
def test_no_line_that_the_list_still_had_is_said_twice(lines: list[str], seen: int, kept: int) -> None:
    # Where all lines differ, what is new is known for certain.
    numbered = [f"{number}{line}" for number, line in enumerate(lines)]
    before = numbered[: min(seen, len(numbered))][-kept:]
    after = numbered[-kept:]

    assert [line for line in after if line not in before] == list(news(before, after))
    assert [] == list(news(after, after))


def test_a_base_installation_is_enough(spec: Path, server: Server) -> None:
    code = f"import sys\nfor name in {ABSENT}: sys.modules[name] = None\nfrom planner.cli import main\nmain()"
    command = [sys.executable, "-c", code, "solve", str(spec), "--budget", "1GB", "--server", server.url]
    running = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    server.jobs.finish(leased(server.jobs), small_result())
    out, err = running.communicate(timeout=60)

    assert (0, True) == (running.returncode, "Plan       model.plan.yaml" in out), err


def test_ctrl_c_takes_the_job_back(spec: Path, server: Server) -> None:
    running = subprocess.Popen(
        [*COMMAND, "solve", str(spec), "--budget", "1GB", "--server", server.url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    asked = running.stderr.readline()
    assert "waiting for a worker" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)

    job = server.jobs.get(asked.strip().rpartition("/")[2])
    assert job is not None
    assert JobStatus.CANCELLED is job.status
    assert "planner: took the job back\nplanner: error: interrupted\n" == err
    assert (130, "") == (running.returncode, out)
