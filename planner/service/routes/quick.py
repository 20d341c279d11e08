"""What is answered at once: lint and estimates."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, field_validator

from planner.service.routes.access import Asker, Service, may_submit

router = APIRouter(prefix="/v1", tags=["at once"], dependencies=[may_submit])

SPEC = "model: {preset: llama-3-8b}\nbatch: {micro_batch: 1, sequence_length: 8192}\nparallel: {fsdp: 8}\n"
MAX_SPEC = 1_000_000  # characters, as `planner lint` takes of a config; people write some hundred
CONFIG = "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: d\ncontext_parapllel_size: 2\n"


class Body(BaseModel):
    """What is sent: no keys but those that are known, and text that can be written."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str):
                text.encode()  # a ValueError where half of a character stands alone, as JSON can say it
        return value


class LintBody(Body):
    """A training config to check."""

    content: str = Field(description="The file's text.", examples=[CONFIG])
    name: str = Field("config.yaml", max_length=200, description="Its name, whose end says how it is written.")
    dialect: str | None = Field(None, max_length=50, description="The framework, instead of recognising it.")
    select: list[str] = Field([], max_length=200, description="Rules to run: codes, prefixes, names.")
    ignore: list[str] = Field([], max_length=200, description="Rules not to run.")
    device: str | None = Field(None, max_length=50, description="A device, for rules that need one.")


class EstimateBody(Body):
    """A run whose memory to estimate."""

    spec: str = Field(max_length=MAX_SPEC, description="The spec's YAML text.", examples=[SPEC])
    device: str | None = Field(None, max_length=50, description="A device instead of the spec's.")


@router.post("/lint", summary="Check a training config")
def post_lint(body: LintBody, service: Service, asker: Asker) -> dict[str, Any]:
    """The findings, as `planner lint --output-format json` prints them. Files that the config names are not read."""
    return service.helpers.lint(asker, **body.model_dump())


@router.post("/estimate", summary="Say whether a run fits its device")
def post_estimate(body: EstimateBody, service: Service, asker: Asker) -> dict[str, Any]:
    """The estimate, as `planner estimate --json` prints it."""
    return service.helpers.estimate(asker, spec=body.spec, device=body.device)
