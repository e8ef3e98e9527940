"""A service with the page over the sample's posts and some hostile ones, shared by its tests."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from helpers.service_samples import listening, models
from pipeline.collections.named import SAMPLE
from pipeline.collections.own import read_collection
from pipeline.service.app import Access, Service, build
from pipeline.service.models import ServedModel
from pipeline.service.page.routes import routes
from pipeline.service.page.searching import Grades, SearchPage
from pipeline.service.requests import Limits

HOSTILE = [
    {
        "id": "168731105250123001",
        "text": "<script>hacked=1</script> xylophone \"quoted\" 'one' &amp; &lt; & \u202e\x07"
        " <img src=x>",
        "url": "javascript:hacked=1",
    },
    {
        "id": "168731105250123002",
        "text": "xylophone </p><b>bold</b> \ufeff \U0001f469\u200d\U0001f680 מוזיקה",
        "url": 'http://x.org/"><script>hacked=1</script>',
    },
]
HOSTILE_QUERY = 'xylophone <script>hacked=1</script> "x" & <img src=x onerror=hacked=1>'


class ServedPage(NamedTuple):
    """The page, and its address without a slash at the end."""

    page: SearchPage
    address: str


@contextmanager
def served(folder: Path) -> Iterator[ServedPage]:
    """The page in this process, over a collection that is made in ``folder``."""
    (folder / "hostile.jsonl").write_text("".join(json.dumps(post) + "\n" for post in HOSTILE))
    description = folder / "pages.toml"
    description.write_text(
        f'posts = ["{SAMPLE}/posts.jsonl", "hostile.jsonl"]\n'
        f'topics = "{SAMPLE}/topics.txt"\nqrels = "{SAMPLE}/qrels.txt"\n'
    )
    grades = Grades(folder / "grades.txt")
    page = SearchPage(read_collection(description), lambda: models().served, grades)
    try:
        with serving(page) as address:
            yield ServedPage(page, address)
    finally:
        page.close()


@contextmanager
def serving(page: SearchPage, keys: Sequence[str] = ()) -> Iterator[str]:
    """The address of a service with the page, without a slash at the end."""
    app = build(Service(models(), Limits(), 1), Access(keys), routes(page))
    with listening(app) as address:
        yield address


def seen_model(page: SearchPage) -> ServedModel:
    """The model of a page, as if it was trained on the page's collection."""
    model = models().default
    trained_on = {"trained_on": ["mb2011", page.collection.name]}
    seen = replace(model)
    vars(seen)["checkpoint"] = replace(model.checkpoint, metrics=trained_on)
    return seen
