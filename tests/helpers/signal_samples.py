"""A collection whose relevance depends on a number beside the text, made up."""

import json
import random
from pathlib import Path

TOPICS, POSTS = 24, 40
WORDS = ("storm", "library", "marathon", "museum", "coffee", "satellite", "bakery", "election")
CHATTER = ("lol", "today", "just", "really", "new", "watch")
PLACES = ("harbour", "village", "bridge")


def write_collection(folder: Path, signals: str) -> Path:
    """Write it: posts of a topic say the same, and the ten with the most likes are relevant.

    Every seventh post has no likes.
    """
    rng, posts, topics, qrels = random.Random(1), list[str](), list[str](), list[str]()
    for number in range(TOPICS):
        query = f"{WORDS[number % 8]} {PLACES[number // 8]}"
        topics.append(f"{number}\t{query}")
        likes = rng.sample(range(1000), POSTS)
        best = sorted(likes)[-10:]
        for row, count in enumerate(likes):
            doc_id, is_known = 100 * number + row + 1, row % 7 != 6
            text = f"{query} {' '.join(rng.choices(CHATTER, k=3))}"
            post = {"id": str(doc_id), "text": text, "created": f"2026-11-{row % 28 + 1:02d}"}
            posts.append(json.dumps(post | ({"stats": {"likes": count}} if is_known else {})))
            qrels.append(f"{number} 0 {doc_id} {int(is_known and count in best)}")
    for name, lines in (("posts.jsonl", posts), ("topics.tsv", topics), ("qrels.txt", qrels)):
        (folder / name).write_text("\n".join(lines) + "\n")
    path = folder / "mine.toml"
    path.write_text(
        f'posts = "posts.jsonl"\ntopics = "topics.tsv"\nqrels = "qrels.txt"\nsignals = {signals}\n'
    )
    return path
