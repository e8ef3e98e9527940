"""A data folder in the layout of the answer-selection collections, small and made up."""

import random
from pathlib import Path

SUBJECTS = ("storm", "library", "marathon", "museum", "coffee", "satellite", "bakery", "election")
PLACES = ("harbour", "village", "bridge", "station", "market", "castle", "airport", "stadium")
FILLER = ("was", "the", "near", "old", "new", "first", "people", "year", "built", "known")

TREC_PARTS = {"train": 8, "raw-dev": 4, "raw-test": 4}
WIKI_PARTS = {"train": 8, "dev": 4, "test": 4}
"""Part -> its number of questions."""
ANSWERS = (5, 6, 7)
"""Answers of the first, second, third, fourth, … question of a part, over and over."""

Row = tuple[str, str, str, int]  # id, question, answer, label


def write_data(folder: Path, seed: int = 1) -> Path:
    """Write TrecQA, raw and clean, WikiQA, and word vectors; no labels of WikiQA's test part.

    The last question of each raw part has no relevant answer; the clean parts lack it.
    """
    rng = random.Random(seed)
    for number, (part, count) in enumerate(TREC_PARTS.items(), start=1):
        rows = [
            row
            for n in range(1, count + 1)
            for row in _rows(f"{number}.{n}", "", n, n == count, rng)
        ]
        _write(folder / "trecqa" / part, rows)
        if part != "train":
            clean = [row for row in rows if row[0] != f"{number}.{count}"]
            _write(folder / "trecqa" / part.replace("raw", "clean"), clean)
    for number, (part, count) in enumerate(WIKI_PARTS.items()):
        rows = [
            row
            for n in range(1, count + 1)
            for row in _rows(f"Q{number * 10 + n}", f"-D{n}-", n, False, rng)
        ]
        _write(folder / "wikiqa" / part, rows)
    (folder / "wikiqa" / "test" / "sim.txt").unlink()
    words = [*SUBJECTS, *PLACES, *FILLER, "where", "is"]
    lines = [f"{len(words)} 8"] + [
        f"{word} " + " ".join(f"{rng.gauss(0, 1):.3f}" for _ in range(8)) for word in words
    ]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
    return folder


def _rows(query_id: str, mark: str, number: int, hopeless: bool, rng: random.Random) -> list[Row]:
    """A question's answers; ``mark`` with the answer's number completes its id, if it has one."""
    subject, place = SUBJECTS[number % 8], rng.choice(PLACES)
    rows = []
    count = ANSWERS[number % len(ANSWERS)]
    right = set() if hopeless else set(rng.sample(range(count), 2))
    for n in range(count):
        words = rng.sample(FILLER, 4)
        words += [subject, place] if n in right else [rng.choice([subject, place]), "year"]
        rng.shuffle(words)
        answer_id = f"{query_id}{mark}{n}" if mark else query_id
        question = f"where is the {subject} {place} ?"
        rows.append((answer_id, question, f"{' '.join(words)} .", int(n in right)))
    return rows


def _write(folder: Path, rows: list[Row]) -> None:
    folder.mkdir(parents=True)
    for name, column in {"id.txt": 0, "a.toks": 1, "b.toks": 2, "sim.txt": 3}.items():
        (folder / name).write_text("".join(f"{row[column]}\n" for row in rows))
