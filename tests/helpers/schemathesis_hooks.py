"""Hooks for schemathesis, for rules that a schema cannot express."""

from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Make a valid request obey the rules that the schema cannot express.

    It names no unknown model, and has first-stage scores for all documents or for none.
    Requests that are meant to be wrong are not changed.
    """
    body = case.body
    is_meant_wrong = case.meta.generation.mode is schemathesis.GenerationMode.NEGATIVE
    if is_meant_wrong or not isinstance(body, dict):
        return
    body.pop("model", None)
    documents = body.get("texts", body.get("documents"))
    if not isinstance(documents, list):
        documents = [documents]
    objects = [document for document in documents if isinstance(document, dict)]
    scores = [document.get("first_stage_score") for document in objects]
    if None in scores or len(objects) < len(documents):
        body.pop("mix", None)
        for document in objects:
            document.pop("first_stage_score", None)
