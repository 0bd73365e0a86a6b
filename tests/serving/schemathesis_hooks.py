"""The ids of one request to /predict differ, which JSON Schema can't say. Named in SCHEMATHESIS_HOOKS."""

from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Takes an id away where it stands for the second time; a filter would not be asked in every phase."""
    inputs = case.body.get("inputs") if isinstance(case.body, dict) else None
    seen = set()
    for each in inputs if isinstance(inputs, list) else []:
        id = each.get("id") if isinstance(each, dict) else None
        if isinstance(id, str) and id in seen:
            del each["id"]
        elif isinstance(id, str):
            seen.add(id)
