"""Explanations as HTML pages.

A page is one file without external resources, and its content security policy forbids scripts and
requests. Every value in a template is escaped, and has no control characters.
"""

from __future__ import annotations

import base64
import hashlib
from math import isnan

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.explanation.topic import (
    SHARED_STYLE,
    TEMPLATES,
    ExplainedTopic,
    grade_text,
    plain,
    signed,
)
from rerankers.explanation import visible


def page(topic: ExplainedTopic) -> str:
    """The page of one topic."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"signed": signed, "known": known, "plain": plain, "grade_text": grade_text}
    environment.filters |= filters
    files = SHARED_STYLE, TEMPLATES / "page.css"
    style = "".join(file.read_text(encoding="utf-8") for file in files)
    return environment.get_template("topic.html").render(
        topic=topic,
        explanation=topic.explanation,
        style=Markup(style),
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def known(value: float) -> str:
    """A feature's value with four digits."""
    return "not known" if isnan(value) else f"{value:.4g}"
