"""The pages: ask, watch, read, compare. Rendered here; scripts only add what a page can do without."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader

from planner.device import device_names
from planner.errors import PlannerError
from planner.presets import preset_names
from planner.service.problems import problem, problem_of
from planner.service.requests import plan_file
from planner.service.routes.access import (
    COOKIE,
    Asker,
    Service,
    is_same_site,
    local,
    page_may_read,
    page_may_submit,
)
from planner.service.routes.plans import (
    DEFAULT_GAP,
    DEFAULT_TIME_LIMIT_S,
    JobId,
    PlanBody,
    SeenId,
    ask,
    best_so_far,
    found,
)
from planner.service.security import PAGE_POLICY
from planner.service.store.jobs import IN_FLIGHT, Answer, Job, JobStatus
from planner.service.store.tokens import Scope
from planner.units import format_bytes, format_seconds

router = APIRouter(include_in_schema=False)

_STATIC = {"pages.css": "text/css", "pages.js": "text/javascript"}
_ON_A_PAGE = 50
_COOKIE_S = 30 * 24 * 3600
_TIME_LIMIT = f"{DEFAULT_TIME_LIMIT_S:g}"


def _environment() -> Environment:
    environment = Environment(loader=PackageLoader("planner.service.pages"), autoescape=True)
    environment.filters["gb"] = format_bytes
    environment.filters["seconds"] = format_seconds
    environment.filters["percent"] = _percent
    environment.filters["utc"] = lambda seconds: f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    return environment


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.2%}"


_TEMPLATES = _environment()


def _page(service: Service, template: str, here: str, code: int = 200, **values: Any) -> HTMLResponse:
    text = _TEMPLATES.get_template(template).render(here=here, needs_tokens=service.settings.needs_tokens, **values)
    return HTMLResponse(text, status_code=code, headers={"content-security-policy": PAGE_POLICY})


@router.get("/static/{name}")
def static(name: str) -> Response:
    """The pages' style and script."""
    if name not in _STATIC:
        return Response(status_code=404)
    content = resources.files("planner.service.pages").joinpath("static", name).read_bytes()
    return Response(content, media_type=_STATIC[name], headers={"cache-control": "max-age=300"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What was typed in, to be shown again where it cannot be used."""

    spec: str = ""
    name: str = "spec.yaml"
    budget: str = ""
    host_budget: str = ""
    device: str = ""
    time_limit: str = _TIME_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    """A spec to start from: a file in `pages/examples`, with a budget that makes it interesting."""

    key: str
    title: str
    budget: str


EXAMPLES = (
    _Example(key="gpt2", title="GPT-2 on a 24 GB card", budget="12GB"),
    _Example(key="llama-3-8b", title="Llama 3 8B over eight H100s", budget="40GB"),
)


@router.get("/", dependencies=[page_may_read])
def submit_page(service: Service, example: str = "") -> HTMLResponse:
    """Where a plan is asked for."""
    for one in EXAMPLES:
        if one.key == example:
            return _submit_page(service, _Asked(spec=example_spec(one.key), name=f"{one.key}.yaml", budget=one.budget))
    return _submit_page(service, _Asked())


def example_spec(key: str) -> str:
    """The text of an example."""
    return resources.files("planner.service.pages").joinpath("examples", f"{key}.yaml").read_text(encoding="utf-8")


def _submit_page(service: Service, form: _Asked, status: int = 200, **values: Any) -> HTMLResponse:
    return _page(
        service,
        "submit.html",
        "/",
        status,
        form=form,
        devices=device_names(),
        presets=preset_names(),
        examples=EXAMPLES,
        longest_time_limit_s=service.settings.limits.longest_time_limit_s,
        **values,
    )


def problem_page(service: Service, found: Mapping[str, Any]) -> HTMLResponse:
    """A problem document for people."""
    return _page(service, "problem.html", "", found["status"], problem=found)


@router.post("/submit", dependencies=[page_may_submit])
def submit(
    service: Service,
    asker: Asker,
    spec: Annotated[str, Form()] = "",
    name: Annotated[str, Form()] = "",
    budget: Annotated[str, Form()] = "",
    host_budget: Annotated[str, Form()] = "",
    device: Annotated[str, Form()] = "",
    time_limit: Annotated[str, Form()] = _TIME_LIMIT,
) -> Response:
    """Asks for a plan and leads to it, or says what is wrong."""
    # A browser sends lines that end in CR LF.
    form = _Asked(
        spec=spec.replace("\r\n", "\n"),
        name=name or "spec.yaml",
        budget=budget,
        host_budget=host_budget,
        device=device,
        time_limit=time_limit,
    )
    try:
        body = PlanBody(
            spec=form.spec,
            name=form.name,
            budget=form.budget,
            host_budget=form.host_budget or None,
            device=form.device or None,
            gap=DEFAULT_GAP,
            time_limit=float(form.time_limit),
        )
        job = ask(body, service, asker)
    except PlannerError as error:
        found = problem_of(error)
        return _submit_page(service, form, found["status"], problem=found)
    except ValueError as error:
        detail = "; ".join(one["msg"] for one in error.errors()) if hasattr(error, "errors") else str(error)
        return _submit_page(service, form, 422, problem=problem(422, "The form cannot be used", detail))
    return RedirectResponse(f"/plans/{job.id}", status_code=303)


@router.get("/plans", dependencies=[page_may_read])
def plans_page(service: Service, q: str = "", status: str = "", before: SeenId = None) -> HTMLResponse:
    """The queue, and what came of it."""
    wanted = JobStatus(status) if status in tuple(JobStatus) else None
    jobs = service.jobs.search(text=q[:200], status=wanted, before=before, limit=_ON_A_PAGE)
    older = ""
    if len(jobs) == _ON_A_PAGE:
        older = "/plans?" + urlencode({"q": q, "status": status, "before": jobs[-1].id})
    return _page(service, "plans.html", "/plans", jobs=jobs, q=q, status=status, statuses=tuple(JobStatus), older=older)


@router.get("/plans/{job_id}", dependencies=[page_may_read])
def plan_page(job_id: JobId, service: Service) -> HTMLResponse:
    """A plan: how far it is, or what it is."""
    job = found(service.jobs.get(job_id))
    return _page(
        service,
        "plan.html",
        "/plans",
        job=job,
        spec=(service.jobs.request(job_id) or {}).get("spec", ""),
        in_flight=job.status in IN_FLIGHT,
        is_done=job.status is JobStatus.DONE,
        best=best_so_far(job),
        plan_file=plan_file(job.name),
    )


@router.post("/plans/{job_id}/cancel", dependencies=[page_may_submit])
def cancel(job_id: JobId, service: Service) -> Response:
    """Takes a plan back and leads to it."""
    found(service.jobs.cancel(job_id))
    return RedirectResponse(f"/plans/{job_id}", status_code=303)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One of two plans."""

    job: Job
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A figure of both plans."""

    name: str
    shown: tuple[str, ...]
    difference: str


_Figure = tuple[str, Callable[[Mapping[str, Any]], float | None], Callable[[float], str]]
_FIGURES: tuple[_Figure, ...] = (
    ("Budget", lambda found: found["budget_bytes"], lambda value: format_bytes(int(value))),
    ("Predicted peak", lambda found: found["predicted_peak_bytes"], lambda value: format_bytes(int(value))),
    ("Static memory", lambda found: found["static_bytes"]["total"], lambda value: format_bytes(int(value))),
    ("Predicted step", lambda found: found["predicted_step_s"], format_seconds),
    ("Added to the step", lambda found: found["added_s"], format_seconds),
    ("of that, replays", lambda found: found["recompute_s"], format_seconds),
    ("of that, waiting for the link", lambda found: found["stall_s"], format_seconds),
    ("Host memory", lambda found: found["host_bytes"], lambda value: format_bytes(int(value))),
    ("Distance to the least possible", lambda found: found["gap"], _percent),
)


@router.get("/compare", dependencies=[page_may_read])
def compare_page(
    service: Service, chosen: Annotated[list[str] | None, Query(alias="id", max_length=50)] = None
) -> HTMLResponse:
    """Two plans side by side."""
    ids = list(dict.fromkeys(chosen or []))
    plans: list[_Compared] = []
    for job_id in ids[:2]:
        job, answer = service.jobs.get(job_id), service.jobs.answer(job_id)
        if job is not None and answer is not None:
            plans.append(_Compared(job=job, answer=answer))
    why = f"{len(ids)} were chosen" if ids and len(ids) != 2 else ""
    if why or len(plans) != 2:
        return _page(service, "compare.html", "/compare", plans=(), rows=(), problem=why)
    one, other = (plan.answer.summary for plan in plans)
    rows = [_row(name, (get(one), get(other)), show) for name, get, show in _FIGURES]
    model = _Row(name="Model", shown=(one["model"], other["model"]), difference="")
    device = _Row(name="Device", shown=(one["device"], other["device"]), difference="")
    return _page(service, "compare.html", "/compare", plans=plans, rows=[model, device, *rows])


def _row(name: str, values: tuple[float | None, float | None], show: Callable[[float], str]) -> _Row:
    shown = tuple("not known" if one is None else show(one) for one in values)
    return _Row(name=name, shown=shown, difference=_difference(*values, show))


def _difference(one: float | None, other: float | None, show: Callable[[float], str]) -> str:
    if one is None or other is None:
        return ""
    if one == other:
        return "none"
    return f"+{show(other - one)}" if other > one else f"−{show(one - other)}"


@router.get("/login")
def login_page(service: Service, wanted: Annotated[str, Query(alias="next")] = "/") -> HTMLResponse:
    """Where a browser is given a token."""
    return _page(service, "login.html", "/login", wanted=wanted)


@router.post("/login")
def login(
    service: Service,
    request: Request,
    token: Annotated[str, Form()] = "",
    wanted: Annotated[str, Form(alias="next")] = "/",
) -> Response:
    """Remembers a token that is good, in a cookie that scripts cannot read, and leads to the page that was wanted."""
    known = service.tokens.find(token) if is_same_site(request) else None
    if known is None or Scope.READ not in known.scopes:
        problem = "This token is not known here, or cannot read."
        return _page(service, "login.html", "/login", 403, wanted=wanted, problem=problem)
    response = RedirectResponse(local(wanted), status_code=303)
    response.set_cookie(
        COOKIE, token, max_age=_COOKIE_S, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return response


@router.post("/logout")
def logout(request: Request) -> Response:
    """Forgets the token, where no other site asks for that."""
    response = RedirectResponse("/login", status_code=303)
    if is_same_site(request):
        response.delete_cookie(COOKIE)
    return response
