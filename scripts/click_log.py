#!/usr/bin/env python3
"""Make a click log of a judged collection, by simulated users, to try pipeline.clicks on.

    python scripts/click_log.py --collection my-posts.toml --output log.jsonl

The list of a user has the best posts of the first stage, in a new order each time: by the logarithm
of their rank with noise, so that a post is seen at several positions. Users look at position k with
the probability 1 / k (the log's pipeline.clicks has to find that out), and click on a relevant post
that they look at with the probability --click, on another one with --mistake.
"""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.options import (
    fraction,
    non_negative_float,
    non_negative_int,
    option,
    output_file,
    positive_int,
    run_command,
)

if TYPE_CHECKING:
    from pipeline.collections.trec import Qrels
    from pipeline.ranking.retrievers import Candidates


@dataclass(frozen=True)
class Options:
    """The collection, and the habits of users."""

    collection: str = option("judged collection", required=True, metavar="NAME|FILE")
    output: Path = option("log to write", parse=output_file, required=True, metavar="JSONL")
    impressions: int = option("lists for each judged topic", default=20, parse=positive_int)
    hits: int = option("posts of a list", default=10, parse=positive_int)
    noise: float = option(
        "standard deviation of the noise on a rank's logarithm",
        default=1.0,
        parse=non_negative_float,
    )
    click: float = option("share of clicks on relevant posts", default=0.7, parse=fraction)
    mistake: float = option("share of clicks on other posts", default=0.05, parse=fraction)
    seed: int = option("seed of all users", default=1, parse=non_negative_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Search, simulate, write the log."""
    from indexes.files import atomic_file
    from pipeline.collections.named import find
    from pipeline.command.errors import DataError
    from pipeline.ranking.retrievers import retriever_for

    collection = find(options.collection, options.data)
    if (qrels := collection.training_qrels) is None:
        raise DataError(f"{collection.missing_judgments}; simulated users click by them")
    candidates = retriever_for(collection).search(collection.training_topics, 3 * options.hits)
    written = clicked = 0
    with atomic_file(options.output) as stream:
        for record in impressions(candidates, qrels, options):
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            written, clicked = written + 1, clicked + bool(record["clicked"])
    print(f"wrote {options.output}: {written:,} impressions, {clicked:,} with a click")


def impressions(
    candidates: "Candidates", qrels: "Qrels", options: Options
) -> Iterator[dict[str, object]]:
    """The lines of the log, in a random order of topics."""
    from pipeline.collections.trec import ranked

    users = random.Random(options.seed)
    topics = [topic for topic in candidates.topics if candidates.run.get(topic.query_id)]
    for topic in users.sample(topics * options.impressions, len(topics) * options.impressions):
        best = [doc_id for doc_id, _ in ranked(candidates.run[topic.query_id])]
        keys = [math.log(rank) + users.gauss(0, options.noise) for rank in range(1, len(best) + 1)]
        shown = [doc_id for _, doc_id in sorted(zip(keys, best, strict=True))][: options.hits]
        clicked = []
        for position, doc_id in enumerate(shown, start=1):
            relevant = qrels[topic.query_id].get(doc_id, 0) > 0
            if users.random() * position < (options.click if relevant else options.mistake):
                clicked.append(doc_id)
        yield {
            "query_id": topic.query_id,
            "query": topic.text,
            "shown": shown,
            "clicked": clicked,
        }


if __name__ == "__main__":
    run_command(Options, main, "scripts/click_log.py", __doc__)
