"""The API and the guards in front of it, asked over sockets: every endpoint, every refusal, and what is never said."""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from click.testing import CliRunner

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from planner.cli import main
from planner.service import security
from planner.service.bodies import Buffers
from planner.service.routes.plans import get_events
from planner.service.security import RateLimiter, Streams
from planner.service.settings import MIB, HelperLimits, QueueLimits
from planner.service.store.database import Database
from planner.service.store.jobs import Job, JobStatus, JobStore, Result
from planner.service.store.tokens import Scope, TokenStore
from tests.service.processes import Answer, Server, eventually, serving, settings_for, spec_of, tiny

LLAMA = "model: {preset: llama-3-8b}\nbatch: {micro_batch: 1, sequence_length: 512}\n"
UNKNOWN = "0" * 32
# Some seconds and some hundred megabytes, where others are allowed one and a fraction.
LARGE_SPEC = "model: [" + "1," * 490_000 + "]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """One without tokens and without workers."""
    with serving(settings_for(f"sqlite:///{folder}/open.db"), folder / "open.log") as found:
        yield found


@pytest.fixture(scope="module")
def hurried(folder: Path) -> Iterator[Server]:
    """One whose limits are soon reached."""
    settings = settings_for(
        f"sqlite:///{folder}/hurried.db",
        helpers=HelperLimits(deadline_s=1.0),
        body_deadline_s=3.0,
        streams_per_client=2,
        longest_stream_s=2.0,
    )
    with serving(settings, folder / "hurried.log") as found:
        yield found


@pytest.fixture(scope="module")
def tokens(folder: Path) -> dict[str, str]:
    """Secrets, by what they are good for."""
    database = Database(f"sqlite:///{folder}/guarded.db")
    database.migrate()
    store = TokenStore(database)
    scopes = {"read": {Scope.READ}, "submit": {Scope.SUBMIT}, "both": set(Scope), "revoked": set(Scope)}
    made = {name: store.create(name, frozenset(wanted)) for name, wanted in scopes.items()}
    assert store.revoke(made["revoked"][0].id)
    database.close()
    return {name: secret for name, (_, secret) in made.items()}


@pytest.fixture(scope="module")
def guarded(folder: Path, tokens: dict[str, str]) -> Iterator[Server]:
    """One that asks for tokens."""
    settings = settings_for(f"sqlite:///{folder}/guarded.db", needs_tokens=True)
    with serving(settings, folder / "guarded.log") as found:
        yield found


def problem_in(answer: Answer, status: int) -> dict[str, Any]:
    """The problem document that an answer is."""
    assert status == answer.status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.data
    assert found["status"] == status
    assert {"type", "title", "detail"} <= found.keys()
    return found


def asked(server: Server, width: int) -> str:
    """The id of a plan that was asked for."""
    answer = server.post("/v1/plans", tiny(width))
    assert answer.status == 202, answer.body
    return str(answer.data["id"])


# -- what each endpoint answers


def test_lint_finds_what_the_command_finds(server: Server) -> None:
    config = "base_model: m\ndatasets:\n  - path: d\ncontext_parapllel_size: 2\n"
    (finding,) = server.post("/v1/lint", {"content": config}).data["findings"]
    assert ("misspelt-key", 4) == (finding["name"], finding["line"])


def test_an_estimate_says_whether_it_fits(server: Server) -> None:
    found = server.post("/v1/estimate", {"spec": LLAMA, "device": "h100-80gb"}).data
    assert ("llama-3-8b", "h100-80gb") == (found["model"], found["device"])


def test_a_plan_is_queued_and_the_same_question_is_the_same_job(server: Server) -> None:
    first = server.post("/v1/plans", tiny(1))
    again = server.post("/v1/plans", tiny(1))
    assert (202, 202) == (first.status, again.status)
    assert first.headers["location"] == first.data["url"] == again.data["url"]
    assert "queued" == server.get(first.data["url"]).data["status"]


def test_plans_are_listed_and_searched(server: Server) -> None:
    job = asked(server, 2)
    assert job in [one["id"] for one in server.get("/v1/plans?q=tiny%202&status=queued").data["plans"]]
    assert [] == server.get("/v1/plans?q=nothing%00").data["plans"]
    assert [] == server.get(f"/v1/plans?before={UNKNOWN}").data["plans"]


def test_a_plan_that_is_taken_back_is_cancelled(server: Server) -> None:
    job = asked(server, 3)
    assert "cancelled" == server.ask("DELETE", f"/v1/plans/{job}").data["status"]
    assert "the plan is cancelled" == problem_in(server.get(f"/v1/plans/{job}/plan.yaml"), 409)["detail"]


def test_health_readiness_and_metrics(server: Server) -> None:
    assert (200, 200) == (server.get("/healthz").status, server.get("/readyz").status)
    job = asked(server, 9)
    server.ask("DELETE", f"/v1/plans/{job}")
    lines = server.get("/metrics").body.decode().splitlines()
    figures = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    assert 1 <= figures['planner_jobs{status="cancelled"}']
    assert {"queued", "running"} == {name.split('"')[1] for name in figures if name.startswith("planner_oldest_job_s")}
    assert figures['planner_jobs{status="queued"}'] == 0 or figures['planner_oldest_job_seconds{status="queued"}'] > 0
    assert 0 == figures['planner_job_solve_seconds_count{status="cancelled"}']


def test_what_is_done_can_be_fetched(server: Server, folder: Path) -> None:
    job = asked(server, 4)
    database = Database(f"sqlite:///{folder}/open.db")
    store = JobStore(database)
    while (lease := store.lease("test")) is not None and lease.job.id != job:
        pass
    assert lease is not None
    assert store.finish(lease, Result(summary={"gap": 0}, text="", plan="plan: 1\n", report="<script>1</script>"))
    database.close()
    assert {"gap": 0} == server.get(f"/v1/plans/{job}").data["summary"]
    plan = server.get(f"/v1/plans/{job}/plan.yaml")
    assert (b"plan: 1\n", 'attachment; filename="tiny 4.plan.yaml"') == (plan.body, plan.headers["content-disposition"])
    report = server.get(f"/v1/plans/{job}/report.html")
    assert "sandbox allow-scripts; frame-ancestors 'self'" == report.headers["content-security-policy"]
    assert server.get(f"/v1/plans/{job}/events").body.count(b"event: job") == 1


# -- problems


def test_a_spec_that_does_not_fit_is_a_problem_with_its_place(server: Server) -> None:
    for path, more in (("/v1/estimate", {}), ("/v1/plans", {"budget": "1GB"})):
        found = problem_in(server.post(path, {"spec": LLAMA.replace("512", "no"), **more}), 422)
        assert (2, "batch.sequence_length") == (found["line"], found["key"])
        assert found["detail"].startswith("spec:2: batch.sequence_length: expected")


REQUESTS = {
    "no such plan": ("GET", f"/v1/plans/{UNKNOWN}", None, 404),
    "no such plan to cancel": ("DELETE", f"/v1/plans/{UNKNOWN}", None, 404),
    "no such plan to watch": ("GET", f"/v1/plans/{UNKNOWN}/events", None, 404),
    "no id": ("GET", "/v1/plans/x", None, 422),
    "an id with a path": ("GET", "/v1/plans/..%2f..%2fetc%2fpasswd", None, 404),
    "no such address": ("GET", "/v1/nothing", None, 404),
    "not so": ("DELETE", "/v1/lint", None, 405),
    "no JSON": ("POST", "/v1/lint", b"{", 422),
    "nothing": ("POST", "/v1/lint", {}, 422),
    "a key too many": ("POST", "/v1/lint", {"content": "", "path": "/etc/passwd"}, 422),
    "half a character": ("POST", "/v1/lint", b'{"content": "\\ud800"}', 422),
    "half a character in a spec": ("POST", "/v1/estimate", b'{"spec": "\\udfff"}', 422),
    "no UTF-8": ("POST", "/v1/lint", b'{"content": "\xff"}', 400),
    "deep JSON": ("POST", "/v1/lint", b'{"content": ' + b"[" * 1_990 + b"]" * 1_990 + b"}", 400),
    "deeper JSON": ("POST", "/v1/lint", b'{"content": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 413),
    "a million lists": ("POST", "/v1/lint", b'{"content": [' + b"[]," * 1_000_000 + b"[]]}", 413),
    "a million strings": ("POST", "/v1/lint", b'{"content": [' + b'"",' * 1_000_000 + b'""]}', 413),
    "a million values after a quotation mark": ("POST", "/v1/lint", b'{"content": "\\\\", "a": [' + b"1," * 10**6, 413),
    "JSON in UTF-16": ("POST", "/v1/lint", '{"content": "a: 1"}'.encode("utf-16"), 400),
    "a device in a file": ("POST", "/v1/estimate", {"spec": LLAMA, "device": "/etc/passwd"}, 422),
    "no such rule": ("POST", "/v1/lint", {"content": "a: 1", "select": ["nothing"]}, 422),
    "no such dialect": ("POST", "/v1/lint", {"content": "a: 1", "dialect": "nothing"}, 422),
    "no size": ("POST", "/v1/plans", {"spec": LLAMA, "budget": "40"}, 422),
    "an hour": ("POST", "/v1/plans", {"spec": LLAMA, "budget": "40GB", "time_limit": 3600}, 422),
    "for ever": ("POST", "/v1/plans", b'{"spec": "", "budget": "1GB", "time_limit": 1e999}', 422),
    "no number": ("POST", "/v1/plans", b'{"spec": "", "budget": "1GB", "gap": NaN}', 422),
    "two lines of a name": ("POST", "/v1/plans", {"spec": LLAMA, "budget": "1GB", "name": "a\r\nset-cookie: b"}, 422),
    "an endless spec": ("POST", "/v1/estimate", {"spec": "a" * 1_000_001}, 422),
    "a status that is none": ("GET", "/v1/plans?status=lost", None, 422),
    "a number that is none": ("GET", "/v1/plans?limit=1e9", None, 422),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_cannot_be_answered_is_a_problem(name: str, server: Server) -> None:
    method, path, body, status = REQUESTS[name]
    problem_in(server.ask(method, path, body), status)


def test_what_curl_sends_without_a_content_type_is_told_of_it(server: Server) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    found = problem_in(server.ask("POST", "/v1/lint", b'{"content": ""}', form), 422)
    assert "body: expected JSON; send content-type: application/json" == found["detail"]


def test_an_address_with_too_much_in_it_is_named(server: Server) -> None:
    found = problem_in(server.ask("POST", "/v1/v1/plans", {}), 404)
    assert "there is nothing at /v1/v1/plans; /openapi.json has what there is" == found["detail"]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "a function": "model: {factory: 'os:system'}\ninputs: {x: {shape: [1], dtype: float32}}",
    "a loss": LLAMA + "loss: os:system",
    "a config in a file": "model: {transformers: LlamaForCausalLM, config_file: /etc/passwd}\nbatch: {micro_batch: 1}",
    "a device in a file": LLAMA + "device: ../../etc/passwd.yaml",
    "an object": "!!python/object/apply:os.system ['true']",
    "an object inside": LLAMA.replace("512", "!!python/name:os.system"),
    "a bomb": BOMB,
    "depth": "a: " + "[" * 10_000 + "]" * 10_000,
    "no class": "model: {transformers: os}\nbatch: {micro_batch: 1}\nloss: x",
    "itself": "a: &a [*a]",
    "nothing": "",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("path", ["/v1/estimate", "/v1/plans"])
def test_a_spec_from_elsewhere_can_name_nothing_of_this_machine(name: str, path: str, server: Server) -> None:
    more = {"budget": "1GB"} if path == "/v1/plans" else {}
    found = problem_in(server.post(path, {"spec": REFUSED[name], **more}), 422)
    assert "root:" not in found["detail"]


CONFIGS = {
    "auto_map": "{AutoModel: modeling.Evil}",
    "trust_remote_code": "true",
    "attn_implementation": "kernels-community/flash-attn",
    "_attn_implementation": "eager",
    "_name_or_path": "evil",
    "quantization_config": "{quant_method: bitsandbytes}",
    "text_config": "{_attn_implementation: x}",
    "backbone": "hf-hub:evil",
    "hidden_act": "/etc/passwd",
    "encoder": "{model_type: ../../x}",
    "architectures": "[C:\\x]",
    "use_pretrained_backbone": "true",
    "checkpoint_path": "weights.pth",
}


@pytest.mark.parametrize("key", CONFIGS)
def test_a_models_config_can_name_neither_code_nor_weights(key: str, server: Server) -> None:
    spec = LLAMA.replace("llama-3-8b", f"llama-3-8b, config: {{{key}: {CONFIGS[key]}}}")
    found = problem_in(server.post("/v1/plans", {"spec": spec, "budget": "40GB"}), 422)
    assert found["key"].startswith(f"model.config.{key}")
    assert "is not taken here" in found["detail"]


# -- limits


def test_a_text_with_a_million_signs_is_one_value(server: Server) -> None:
    content = '# {},[],"\\' * 100_000
    assert 200 == server.post("/v1/lint", {"content": content, "name": "a.yaml"}).status


def test_of_many_things_that_are_wrong_some_are_named(server: Server) -> None:
    found = problem_in(server.post("/v1/lint", {f"k{number}": 1 for number in range(500)}), 422)
    assert found["detail"].endswith("; and 491 more")  # those, and the content that is missing, but for ten
    assert 10 == found["detail"].count(": ")


def test_what_is_quoted_of_a_request_is_short(server: Server) -> None:
    found = problem_in(server.post("/v1/lint", {"content": "a: 1", "select": ["x" * 20_000] * 10}), 422)
    assert 2001 == len(found["detail"])


FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("sign", [b"&", b"%", b"a"])
def test_a_large_form_is_refused_and_the_way_of_the_page_taken(sign: bytes, server: Server) -> None:
    for path in ("/submit", "/login"):
        found = problem_in(server.ask("POST", path, sign * 65_537, FORM), 413)
        assert "send a larger one as multipart/form-data" in found["detail"]
    spec = LLAMA + "# " + "&%" * 200_000
    body = f'--b\r\ncontent-disposition: form-data; name="spec"\r\n\r\n{spec}\r\n'
    body += '--b\r\ncontent-disposition: form-data; name="budget"\r\n\r\n40GB\r\n--b--\r\n'
    answer = server.ask("POST", "/submit", body.encode(), {"content-type": "multipart/form-data; boundary=b"})
    assert 303 == answer.status


def test_who_sends_too_much_is_answered_all_the_same(server: Server) -> None:
    found = problem_in(server.ask("POST", "/v1/lint", b" " * 50_000_000), 413)
    assert "at most 4,194,304 bytes" in found["detail"]


def test_bodies_take_so_much_memory_of_one_client_and_of_all() -> None:
    buffers = Buffers(of_one=10, of_all=15)
    buffers.take("a", 10)
    with pytest.raises(HTTPException, match="too much is being sent at once"):
        buffers.take("a", 1)
    buffers.take("b", 5)
    with pytest.raises(HTTPException, match="too much is being sent at once"):
        buffers.take("c", 1)
    buffers.give_back("a", 10)
    buffers.take("c", 10)


def test_bodies_that_are_never_finished_leave_room_for_others(server: Server) -> None:
    with ExitStack() as held:
        connections = []
        for _ in range(20):
            connections.append(held.enter_context(socket.create_connection(("127.0.0.1", server.port))))
            with suppress(OSError):
                connections[-1].sendall(HEAD + b"content-length: 4194304\r\n\r\n" + b" " * 4_000_000)
        refused = sum(bool(select([one], [], [], 1.0)[0]) for one in connections)
        # Of 20 that are 4 MB each, 16 have room in 64 MiB; what others have asked before may be there still.
        assert 4 <= refused <= 8
        assert 200 == server.post("/v1/lint", {"content": "a: 1"}, **{"x-forwarded-for": "192.0.2.1"}).status
    eventually(lambda: server.post("/v1/lint", {"content": "a: 2" * 100_000}).status == 200)


@pytest.mark.parametrize("order", [1, -1])
def test_a_request_of_two_lengths_is_refused_and_what_follows_is_no_request(order: int, server: Server) -> None:
    lengths = [b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"][::order]
    answer = raw(server, HEAD + b"".join(lengths) + b"\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert 1 == answer.count(b"HTTP/1.1 ")
    assert b"a content-length or a transfer-encoding, not both" in answer


def test_a_client_waits_for_so_many_plans_and_no_more_and_others_as_well(folder: Path) -> None:
    url = f"sqlite:///{folder}/queue.db"
    with serving(settings_for(url, queue=QueueLimits(of_one=2, of_all=3)), folder / "queue.log") as server:

        def ask(width: int, client: str) -> Answer:
            return server.post("/v1/plans", tiny(width), **{"x-forwarded-for": client})

        assert [202, 202, 202] == [ask(width, "192.0.2.1").status for width in (1, 2, 1)]
        mine = problem_in(ask(3, "192.0.2.1"), 429)
        assert "2 plans of yours wait already; take some back, or wait until one is done" == mine["detail"]
        assert 202 == ask(3, "192.0.2.2").status
        assert "3 plans wait already; try again later" == problem_in(ask(4, "192.0.2.3"), 503)["detail"]
        form = b"spec=" + quote(spec_of(width=5)).encode() + b"&budget=1GB"
        assert 503 == server.ask("POST", "/submit", form, FORM).status
        first = server.get("/v1/plans").data["plans"][-1]["id"]
        for _ in range(2):  # it was asked for twice
            server.ask("DELETE", f"/v1/plans/{first}")
        assert 202 == ask(4, "192.0.2.3").status


def test_one_clients_slow_texts_keep_no_other_client_waiting(hurried: Server) -> None:
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(hurried.post("/v1/estimate", {"spec": LARGE_SPEC}, **{"x-forwarded-for": "192.0.2.1"}).status)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert 200 == hurried.post("/v1/lint", {"content": f"a: {time.monotonic()}"}).status
    assert {422, 503} == set(statuses)


def raw(server: Server, *parts: bytes, pause_s: float = 0.0, timeout_s: float = 30.0) -> bytes:
    """All that comes back when parts are sent one after the other."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all was sent
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except ConnectionResetError:
            pass
        return received


HEAD = b"POST /v1/lint HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def test_a_body_of_100_mb_is_refused_before_it_is_read(server: Server) -> None:
    answer = raw(server, HEAD + b"content-length: 100000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


def test_a_body_of_100_mb_without_a_length_is_refused_once_too_much_has_come(server: Server) -> None:
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    answer = raw(server, HEAD + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 100)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_drips_is_given_up(hurried: Server) -> None:
    answer = raw(hurried, HEAD + b"content-length: 100\r\n\r\n", *[b" "] * 20, pause_s=0.2)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_text_that_takes_too_long_is_given_up_and_others_are_answered_meanwhile(hurried: Server) -> None:
    answers: list[Answer] = []
    slow = threading.Thread(target=lambda: answers.append(hurried.post("/v1/estimate", {"spec": LARGE_SPEC})))
    slow.start()
    assert 200 == hurried.post("/v1/estimate", {"spec": LLAMA}).status
    slow.join()
    assert "takes longer than the 1 s" in problem_in(answers[0], 422)["detail"]
    for _ in range(3):  # each of the helpers
        assert 200 == hurried.post("/v1/lint", {"content": "a: 1"}).status


def test_a_text_that_takes_too_much_memory_is_given_up(folder: Path) -> None:
    settings = settings_for(f"sqlite:///{folder}/small.db", helpers=HelperLimits(count=1, memory_bytes=96 * MIB))
    with serving(settings, folder / "small.log") as server:
        assert (
            "takes more than the 0.1 GB" in problem_in(server.post("/v1/estimate", {"spec": LARGE_SPEC}), 422)["detail"]
        )
        assert 200 == server.post("/v1/estimate", {"spec": LLAMA}).status


def test_more_slow_texts_than_can_wait_are_told_so_and_plans_are_still_looked_up(hurried: Server) -> None:
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(hurried.post("/v1/estimate", {"spec": LARGE_SPEC}).status)

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    assert 200 == hurried.get("/v1/plans").status
    for thread in threads:
        thread.join()
    assert {422, 503} == set(statuses)
    assert 200 == hurried.post("/v1/lint", {"content": "a: 1"}).status


def test_one_client_watches_so_many_plans_at_once_and_not_for_ever(hurried: Server) -> None:
    job = asked(hurried, 5)
    ended: list[Answer] = []
    threads = [threading.Thread(target=lambda: ended.append(hurried.get(f"/v1/plans/{job}/events"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [200, 200, 429, 429, 429, 429] == sorted(answer.status for answer in ended)
    assert 200 == hurried.get(f"/v1/plans/{job}/events").status  # those that ended count no longer


def test_a_client_that_asks_too_often_is_told_to_wait_but_health_is_always_told(folder: Path) -> None:
    settings = settings_for(f"sqlite:///{folder}/rated.db", requests_per_minute=3)
    with serving(settings, folder / "rated.log") as server:
        statuses = [server.get("/v1/plans").status for _ in range(4)]
        last = server.get("/v1/plans")
        assert [200, 200, 200, 429] == statuses
        assert 1 <= int(problem_in(last, 429) and last.headers["retry-after"]) <= 20
        assert 200 == server.get("/healthz").status


def test_the_rate_of_one_client_is_not_anothers_and_refills() -> None:
    now = 0.0
    limiter = RateLimiter(2, clock=lambda: now)
    assert [0.0, 0.0, 30.0] == [limiter.wait_s("a") for _ in range(3)]
    assert 0.0 == limiter.wait_s("b")
    now = 30.0
    assert [0.0, 30.0] == [limiter.wait_s("a") for _ in range(2)]


def test_a_stream_ends_when_the_database_has_no_connection_free(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(
        id=UNKNOWN, key="", name="a", budget="1GB", device=None, status=JobStatus.QUEUED, created_at=0.0,
        started_at=None, finished_at=None, attempt=0, progress=None, problem=None,
    )  # fmt: skip
    answers = iter([job, PoolTimeoutError()])

    def get(job_id: str) -> Job:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    async def is_disconnected() -> bool:
        return False

    async def watched() -> list[str]:
        settings = settings_for("sqlite://")
        service = SimpleNamespace(jobs=SimpleNamespace(get=get), settings=settings, streams=Streams(1))
        request = SimpleNamespace(scope={}, is_disconnected=is_disconnected)
        stream = await get_events(UNKNOWN, service, request)  # type: ignore[arg-type]
        return [str(part) async for part in stream.body_iterator]

    monkeypatch.setattr(security, "EVENT_S", 0.0)
    (only,) = asyncio.run(watched())
    assert only.startswith("event: job\n")


# -- who asks


def test_without_tokens_the_server_answers_to_loopbacks_names_alone(server: Server, guarded: Server) -> None:
    for host in ("localhost", f"localhost:{server.port}", "127.0.0.1", f"[::1]:{server.port}", "LOCALHOST", "[::1]"):
        assert 200 == server.get("/v1/plans", host=host).status
    for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "127.0.0.1.evil.example", ""):
        assert 421 == server.get("/v1/plans", host=host).status
    assert 401 == guarded.get("/v1/plans", host="planner.example").status


def test_odd_values_in_pages_are_no_faults(server: Server) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    for query in ("before=%00", "before=x", f"before={UNKNOWN}", "q=%00", "q=%ff%fe", "status=x"):
        assert server.get(f"/plans?{query}").status in (200, 422)
    for query in ("id=x&id=y", "id=%00&id=", "&".join(["id=a"] * 100)):
        assert server.get(f"/compare?{query}").status in (200, 422)
    for body in (
        b"",
        b"spec=%00",
        b"spec=%ed%a0%80&budget=1GB",
        b"time_limit=nan",
        b"time_limit=1e999",
        b"name=%0d%0a",
    ):
        assert 422 == server.ask("POST", "/submit", body, form).status
    assert 403 == server.ask("POST", "/login", b"token=%ed%a0%80", form).status
    for media in ("multipart/form-data; boundary=a", "multipart/form-data", "application/xml", ";;;", "text/plain"):
        status = server.ask("POST", "/submit", b"--a\r\nx: y\r\n\r\n\xff\r\n--a--", {"content-type": media}).status
        assert status in (400, 422)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
    ids=str,
)
def test_another_site_can_change_nothing(headers: dict[str, str], server: Server) -> None:
    job = asked(server, 6)
    form = {"content-type": "application/x-www-form-urlencoded", **headers}
    text = {"content-type": "text/plain", **headers}
    assert 403 == server.ask("POST", "/v1/plans", json.dumps(tiny(7)).encode(), text).status
    assert 403 == server.ask("POST", "/v1/plans", tiny(7), headers).status
    assert 403 == server.ask("POST", "/v1/lint", {"content": ""}, headers).status
    assert 403 == server.ask("DELETE", f"/v1/plans/{job}", headers=headers).status
    assert 403 == server.ask("POST", f"/plans/{job}/cancel", b"", form).status
    assert 403 == server.ask("POST", "/submit", b"spec=a&budget=1GB", form).status
    assert 403 == server.ask("POST", "/login", b"token=a", form).status
    assert "set-cookie" not in server.ask("POST", "/logout", b"", form).headers
    assert "queued" == server.get(f"/v1/plans/{job}").data["status"]


def test_the_same_site_can(server: Server) -> None:
    for headers in ({"sec-fetch-site": "same-origin"}, {"origin": f"http://127.0.0.1:{server.port}"}):
        assert 200 == server.ask("POST", "/v1/lint", {"content": ""}, headers).status


def test_tokens_are_asked_for_and_each_is_good_for_its_scopes(guarded: Server, tokens: dict[str, str]) -> None:
    refused = guarded.get("/v1/plans")
    assert (401, "Bearer") == (refused.status, refused.headers["www-authenticate"])
    problem_in(refused, 401)
    lint = {"content": "a: 1"}
    expected = {"read": (200, 403), "submit": (403, 200), "both": (200, 200), "revoked": (401, 401)}
    found = {
        name: (
            guarded.get("/v1/plans", authorization=f"Bearer {secret}").status,
            guarded.post("/v1/lint", lint, authorization=f"Bearer {secret}").status,
        )
        for name, secret in tokens.items()
    }
    assert expected == found
    for secret in ("", "planner_", "\xff", "a" * 10_000):
        assert 401 == guarded.get("/v1/plans", authorization=f"Bearer {secret}").status


def test_every_endpoint_asks_for_a_token_but_health_and_the_way_in(guarded: Server) -> None:
    description = guarded.get("/openapi.json").data
    open_ones = {"/healthz", "/readyz"}
    for path, methods in description["paths"].items():
        for method in methods:
            body = {} if method == "post" else None
            status = guarded.ask(method.upper(), path.replace("{job_id}", UNKNOWN), body).status
            assert (200 if path in open_ones else 401) == status, path
    for path in ("/", "/plans", f"/plans/{UNKNOWN}", "/compare"):
        page = guarded.get(path)
        assert (303, f"/login?next={quote(path, safe='')}") == (page.status, page.headers["location"])
    for path in ("/submit", f"/plans/{UNKNOWN}/cancel"):
        page = guarded.ask("POST", path, b"", {"content-type": "application/x-www-form-urlencoded"})
        assert (303, "/login") == (page.status, page.headers["location"])


def test_a_browser_signs_in_with_a_cookie_that_scripts_and_other_sites_do_not_get(
    guarded: Server, tokens: dict[str, str]
) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert 403 == guarded.ask("POST", "/login", b"token=wrong", form).status
    assert 403 == guarded.ask("POST", "/login", f"token={tokens['submit']}".encode(), form).status
    answer = guarded.ask("POST", "/login", f"token={tokens['both']}".encode(), form)
    assert (303, "/") == (answer.status, answer.headers["location"])
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert {"httponly", "samesite=strict", "path=/"} <= {one.lower() for one in attributes}
    assert 200 == guarded.get("/", cookie=cookie).status


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        ("/plans?q=a%20b&status=done", "/plans?q=a%20b&status=done"),
        (f"/compare?id={UNKNOWN}", f"/compare?id={UNKNOWN}"),
        ("/", ""),
        ("/", "plans"),
        ("/", "//evil.example"),
        ("/", "///evil.example"),
        ("/", "/\\evil.example"),
        ("/", "/\t/evil.example"),
        ("/", "/plans\r\nset-cookie: a=b"),
        ("/", "https://evil.example/plans"),
        ("/", "javascript:alert(1)"),
        ("/", "/plän"),
    ],
)
def test_signing_in_leads_to_the_page_that_was_wanted_and_nowhere_else(
    expected: str, wanted: str, guarded: Server, tokens: dict[str, str]
) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = urlencode({"token": tokens["both"], "next": wanted}).encode()
    assert expected == guarded.ask("POST", "/login", body, form).headers["location"]
    again = guarded.ask("POST", "/login", urlencode({"token": "wrong", "next": '"><script>'}).encode(), form)
    assert b'value="&#34;&gt;&lt;script&gt;"' in again.body


def test_no_answer_leads_elsewhere(server: Server) -> None:
    for path in ("//evil.example/", "/v1/plans/", "//evil.example/%2f..", "/login?next=//evil.example"):
        assert "location" not in server.get(path).headers


def test_a_copy_of_the_database_has_no_token(guarded: Server, tokens: dict[str, str], folder: Path) -> None:
    stored = b"".join(path.read_bytes() for path in folder.glob("guarded.db*"))
    assert all(secret.encode() not in stored for secret in tokens.values())


def test_every_answer_has_the_headers_that_keep_browsers_careful(server: Server) -> None:
    for path in ("/", "/plans", "/v1/plans", "/healthz", "/v1/nothing", "/static/pages.css", "/openapi.json"):
        headers = server.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers


# -- what is never said


def test_neither_answers_nor_logs_name_files_of_this_machine_or_tokens(
    server: Server, guarded: Server, hurried: Server, tokens: dict[str, str]
) -> None:
    bodies = [server.ask(method, path, body).body.decode() for method, path, body, _ in REQUESTS.values()]
    bodies += [server.post("/v1/plans", {"spec": spec, "budget": "1GB"}).body.decode() for spec in REFUSED.values()]
    bodies += [one.logged() for one in (server, guarded, hurried)]
    for secret in (*tokens.values(), str(server.log.parent), str(Path(__file__).parents[2]), "site-packages"):
        assert all(secret not in text for text in bodies)
    assert all("Traceback" not in text for text in bodies)


def test_a_token_that_is_sent_in_a_url_is_not_logged(guarded: Server, tokens: dict[str, str]) -> None:
    assert 401 == guarded.get(f"/v1/plans?token={tokens['both']}").status
    assert 404 == guarded.get(f"/{tokens['both']}").status
    assert tokens["both"][:30] not in guarded.logged()
    assert "GET /v1/plans?token=planner_… " in guarded.logged()


def test_what_others_send_makes_no_line_of_a_log(server: Server) -> None:
    server.get("/v1/plans", **{"x-forwarded-for": "\x9b31m evil"})
    assert "\x9b" not in server.logged()
    server.get("/v1/plans?q=%0d%0aINFO%3a%20all%20is%20well%1b%5b31m")
    server.get("/%0d%0aINFO%3a%20all%20is%20well")
    assert not [line for line in server.logged().splitlines() if line.startswith("INFO: all is well")]
    assert "\x1b[31m" not in server.logged()


# -- starting


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0", "--no-tokens"), "others can reach 0.0.0.0, and would need no token"),
        (("--host", "example.org", "--no-tokens"), "others can reach example.org"),
        (("--host", "0.0.0.0"), "there is no token yet"),
        (("--tokens",), "there is no token yet"),
    ],
)
def test_others_are_not_served_without_tokens(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--db", f"sqlite:///{tmp_path}/p.db", *options])
    assert 2 == result.exit_code
    assert message in result.stderr


DATABASES = {
    "postgresql://u:secret@127.0.0.1:1/p": "postgresql://u:***@127.0.0.1:1/p cannot be used",
    "postgresql://u@127.0.0.1:1/p?password=secret": "postgresql://u@127.0.0.1:1/p cannot be used",
    "postgresql://u:secret@localhost:port/p": "expected a database URL such as",
    "mysql://u:secret@localhost/p": "found mysql://",
    "postgresql+asyncpg://u:secret@localhost/p": "found postgresql+asyncpg://",
    "sqlite+aiosqlite:///p.db": "found sqlite+aiosqlite://",
    "sqlite://": "found one without a file",
    "sqlite:///:memory:": "found one without a file",
    "planner.db": "expected a database URL such as",
    "sqlite:////nowhere/at/all/p.db": "its folder has to exist",
    "sqlite:///folder": "the name be no folder's",
    "sqlite:///text.db": "file is not a database; name another file",
    "sqlite:///other.db": "it has tables that are not the planner's",
    "sqlite:///newer.db": "a newer release has made its tables",
    "sqlite:///file:made.db?mode=ro&uri=true": "let this user write the file",
}


@pytest.mark.parametrize("url", DATABASES)
def test_a_database_that_cannot_be_used_is_one_line_without_its_password(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("postgresql:"):
        pytest.importorskip("psycopg")
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text.db").write_text("no database, but a text that is long enough")
    for name, statement in (
        ("newer", "UPDATE alembic_version SET version_num = '9999'"),
        ("other", "DROP TABLE alembic_version"),
        ("made", "SELECT 1"),
    ):
        database = Database(f"sqlite:///{name}.db")
        database.migrate()
        with database.transaction() as connection:
            connection.exec_driver_sql(statement)
        database.close()
    for command in ("worker", "serve"):
        result = CliRunner().invoke(main, [command], env={"PLANNER_DB": url})
        assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
        assert DATABASES[url] in result.stderr
        assert "secret" not in result.stderr


@pytest.mark.parametrize("more", [(), ("--processes", "2")])
def test_an_address_that_is_in_use_is_one_line_and_nothing_is_started(more: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        options = ["serve", "--db", f"sqlite:///{tmp_path}/p.db", "--port", port, *more]
        result = CliRunner().invoke(main, options)
    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert f"cannot listen on 127.0.0.1, port {port}: address already in use; choose another --port" in result.stderr


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "a" * 201])
def test_a_tokens_name_is_a_line(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["token", "create", "--db", f"sqlite:///{tmp_path}/p.db", "--", name])
    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert "expected a name of one line and 1 to 200 characters" in result.stderr


@pytest.mark.parametrize("command", ["serve", "worker", "token list"])
def test_a_driver_that_is_not_installed_is_named_with_its_extra(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    result = CliRunner().invoke(main, command.split(), env={"PLANNER_DB": "postgresql://u@127.0.0.1:1/p"})
    assert 2 == result.exit_code
    assert "activation-planner[postgres]" in result.stderr


def test_the_spec_of_an_allowed_function_is_taken(server: Server) -> None:
    assert 202 == server.post("/v1/plans", {"spec": spec_of(width=8), "budget": "1GB"}).status
    assert 422 == server.post("/v1/plans", {"spec": spec_of("other"), "budget": "1GB"}).status
