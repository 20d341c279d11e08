"""The JSON schemas of every file format the planner reads or writes.

Besides what JSON Schema defines, a subschema may carry ``x-expected``: the end of the sentence "expected
...", for the message that a person reads when a value does not fit.
"""

import json
import os
from functools import cache
from typing import Any


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema in ``<name>.schema.json``, such as "model" or "dialects/axolotl"; shared, so not to be changed."""
    path = os.path.join(os.path.dirname(__file__), f"{name}.schema.json")
    with open(path, encoding="utf-8") as file:
        schema: dict[str, Any] = json.load(file)
    return schema
