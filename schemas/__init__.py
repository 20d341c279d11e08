"""The JSON schemas of every file format the planner reads or writes.

Besides what JSON Schema defines, a subschema may carry ``x-expected``: the end of the sentence "expected
...", for the message that a person reads when a value does not fit.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema in ``<name>.schema.json``, such as "model" or "dialects/axolotl"; shared, so not to be changed."""
    schema: dict[str, Any] = json.loads((Path(__file__).parent / f"{name}.schema.json").read_text(encoding="utf-8"))
    return schema
