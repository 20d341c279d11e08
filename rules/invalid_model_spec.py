"""A model spec that the planner's own commands would refuse."""

from collections.abc import Iterator
from typing import Any

from planner.configs.config import Config, Setting, report
from planner.configs.tree import plain
from planner.diagnostics import Place, Report, Rule, Severity, Source
from planner.errors import LocatedError


def find(config: Config) -> Iterator[Report]:
    """A report of the first thing that is wrong with a spec, as `planner solve` would say it."""
    from planner.spec import from_mapping  # only those who lint a spec pay for what checks it

    try:
        from_mapping(_without_files(plain(config.root)), path=config.document.path)
    except LocatedError as error:
        place = _place(config, error.key or "", is_at_key=error.message == "unknown key")
        yield report(place, error.message, help=error.hint or "")


def _without_files(data: Any) -> dict[str, Any]:
    """The spec without the files that it names, which a rule does not read, and with a batch, as for `planner kv`."""
    spec = dict(data)
    if isinstance(spec.get("model"), dict):
        spec["model"] = {key: value for key, value in spec["model"].items() if key != "config_file"}
    if str(spec.get("device", "")).endswith((".yaml", ".yml")):
        del spec["device"]
    return spec if spec.keys() & {"batch", "inputs"} else {**spec, "batch": {"micro_batch": 1}}


def _place(config: Config, key: str, *, is_at_key: bool) -> Setting | Place:
    """The key's place, or that of the nearest one around it."""
    while key:
        setting = config.get(key)
        if setting is not None:
            return setting.at_key if is_at_key else setting
        key, is_at_key = key.rpartition(".")[0], True
    return Place(document=config.document, start=config.root.start, end=config.root.start)


RULE = Rule(
    code="KEY301",
    name="invalid-model-spec",
    severity=Severity.ERROR,
    summary="A model spec of this planner's that its commands would refuse.",
    why="The same checks as those of `planner solve` and `planner estimate`, before either is run. Files that the spec "
    "names are not read.",
    instead="What the message says; docs/model-spec.md has every key.",
    sources=(Source(title="this planner", where="docs/model-spec.md and schemas/model.schema.json"),),
    find=find,
    dialects=("planner_spec",),
)
