"""Read ``catalogue.json``, the catalogue of the named collections."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def catalogue() -> dict[str, Any]:
    """Return the content of the catalogue: collections, files and terms of use.

    The terms of use are given by the beginning of a group's name.
    """
    content = Path(__file__).with_name("catalogue.json").read_bytes()
    return dict(json.loads(content))


def by_hand(path: Path) -> str:
    """Return advice on how to get an unpublished file of a data folder.

    The result is "" if the file can be fetched or there is no advice.
    """
    for pattern, advice in catalogue()["by_hand"].items():
        if path.parent.match(pattern):
            return f"it is not published: {advice}" if advice else ""
    return ""
