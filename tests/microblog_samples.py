"""A data folder in the layout of the microblog collections, small and made up."""

import random
from pathlib import Path

SUBJECTS = ("storm", "library", "marathon", "museum", "coffee", "satellite", "bakery", "election")
PLACES = ("harbour", "village", "bridge", "station", "market", "castle", "airport", "stadium")
FILLER = ("lol", "today", "just", "really", "new", "watch", "via", "people", "love", "news")


def write_data(folder: Path, topics: int = 8, posts: int = 14, seed: int = 1) -> Path:
    """Write four years of topics, candidates, runs and word vectors; judgments of three years."""
    rng = random.Random(seed)
    microblog = folder / "microblog"
    (microblog / "runs").mkdir(parents=True)
    for offset, year in enumerate((2011, 2012, 2013, 2014)):
        _write_year(microblog, year, offset * topics + 1, topics, posts, rng)
    words = [*SUBJECTS, *PLACES, *FILLER]
    lines = [f"{len(words)} 8"] + [
        f"{word} " + " ".join(f"{rng.gauss(0, 1):.3f}" for _ in range(8)) for word in words
    ]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
    return folder


def _write_year(
    folder: Path, year: int, first: int, topics: int, posts: int, rng: random.Random
) -> None:
    lines: dict[str, list[str]] = {name: [] for name in ("a.toks", "b.toks", "url.txt", "id.txt")}
    judgments, descriptions = [], []
    for number in range(topics):
        query_id, query = str(first + number), f"{SUBJECTS[number % 8]} {rng.choice(PLACES)}"
        descriptions.append(
            f"<top>\n<num> Number: MB{first + number:03d} </num>\n<query> {query} </query>\n"
            f"<querytime> x </querytime>\n<querytweettime> 99999999 </querytweettime>\n</top>\n"
        )
        for rank in range(1, posts + 1):
            relevant = rng.random() < 0.4
            doc_id = str(10_000_000 + year * 1000 + number * 20 + rank)
            text = _post(query, relevant, rng)
            url = f"http://news.example.com/{query.replace(' ', '-')}" if relevant else ""
            lines["a.toks"].append(query)
            lines["b.toks"].append(text)
            lines["url.txt"].append(url)
            lines["id.txt"].append(f"{query_id} Q0 {doc_id} {rank} {10 - rank / 10:.4f} ql")
            judgments.append(f"{query_id} 0 {doc_id} {int(relevant)}")
    place = folder / f"trec-{year}"
    place.mkdir()
    for name, content in lines.items():
        (place / name).write_text("".join(f"{line}\n" for line in content))
    run = "".join(f"{line}\n" for line in lines["id.txt"])
    (folder / "runs" / f"run.microblog{year}.RM3.txt").write_text(run)
    (folder / f"topics.microblog{year}.txt").write_text("\n".join(descriptions))
    if year != 2014:
        qrels = "".join(f"{line}\n" for line in judgments)
        (folder / f"qrels.microblog{year}.txt").write_text(qrels)


def _post(query: str, relevant: bool, rng: random.Random) -> str:
    words = rng.sample(FILLER, 4)
    words += query.split() if relevant else [rng.choice(query.split()), rng.choice(PLACES)]
    rng.shuffle(words)
    return " ".join(words)
