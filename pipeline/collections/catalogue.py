"""Catalogue of the named collections: ``catalogue.json``."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def catalogue() -> dict[str, Any]:
    """Collections and their files; terms of use by prefix of the files' groups."""
    content = Path(__file__).with_name("catalogue.json").read_bytes()
    return dict(json.loads(content))


def by_hand(path: Path) -> str:
    """Advice for an unpublished file of a data folder; "" if it can be fetched."""
    for pattern, advice in catalogue()["by_hand"].items():
        if path.parent.match(pattern):
            return f"it is not published: {advice}" if advice else ""
    return ""
