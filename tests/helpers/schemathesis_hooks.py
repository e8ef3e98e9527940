"""Read by schemathesis: mends requests that are wrong in ways that no schema can tell."""

from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """No unknown model, and scores of the first stage for all documents or for none."""
    body = case.body
    is_meant_wrong = case.meta.generation.mode is schemathesis.GenerationMode.NEGATIVE
    if is_meant_wrong or not isinstance(body, dict):
        return
    body.pop("model", None)
    documents = body.get("texts", body.get("documents"))
    documents = documents if isinstance(documents, list) else [documents]
    scores = [
        one.get("first_stage_score") if isinstance(one, dict) else None
        for one in documents
    ]
    if None in scores:
        body.pop("mix", None)
        for one in documents:
            if isinstance(one, dict):
                one.pop("first_stage_score", None)
