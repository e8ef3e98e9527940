"""Small data folders, made up, in the layout of the real collections."""

import random
import zipfile
from collections.abc import Sequence
from pathlib import Path

SUBJECTS = ("storm", "library", "marathon", "museum", "coffee", "satellite", "bakery", "election")
PLACES = ("harbour", "village", "bridge", "station", "market", "castle", "airport", "stadium")
CHATTER = ("lol", "today", "just", "really", "new", "watch", "via", "people", "love", "news")
FILLER = ("was", "the", "near", "old", "new", "first", "people", "year", "built", "known")

TREC_PARTS = {"train": 8, "raw-dev": 4, "raw-test": 4}
WIKI_PARTS = {"train": 8, "dev": 4, "test": 4}  # Part -> its number of questions
TRAIN_ALL = 12  # Questions of TrecQA's TRAIN-ALL
ANSWERS = (5, 6, 7)
"""Answers of the first, second, third, fourth, … question of a part, over and over."""

Row = tuple[str, str, str, int]  # id, question, answer, label


def write_microblog(folder: Path, topics: int = 8, posts: int = 14, seed: int = 1) -> Path:
    """Write four years of topics, candidates, judgments and runs, and word vectors."""
    rng = random.Random(seed)
    microblog = folder / "microblog"
    (microblog / "runs").mkdir(parents=True)
    for offset, year in enumerate((2011, 2012, 2013, 2014)):
        _write_year(microblog, year, offset * topics + 1, topics, posts, rng)
    _write_vectors(folder, [*SUBJECTS, *PLACES, *CHATTER], rng)
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
    for name in (f"run.microblog{year}.RM3.txt", f"mphcnn_trec_{year}_pred.txt"):
        (folder / "runs" / name).write_text(run)
    (folder / f"topics.microblog{year}.txt").write_text("\n".join(descriptions))
    qrels = "".join(f"{line}\n" for line in judgments)
    (folder / f"qrels.microblog{year}.txt").write_text(qrels)


def _post(query: str, relevant: bool, rng: random.Random) -> str:
    words = rng.sample(CHATTER, 4)
    words += query.split() if relevant else [rng.choice(query.split()), rng.choice(PLACES)]
    rng.shuffle(words)
    return " ".join(words)


def write_answers(folder: Path, seed: int = 1) -> Path:
    """Write TrecQA, raw and clean, with both training parts, WikiQA, and word vectors.

    The last question of each raw part has no relevant answer; the clean parts lack it.
    """
    rng = random.Random(seed)
    for number, (part, count) in enumerate(TREC_PARTS.items(), start=1):
        rows = [
            row
            for n in range(1, count + 1)
            for row in _rows(f"{number}.{n}", "", n, n == count, rng)
        ]
        _write_part(folder / "trecqa" / part, rows)
        if part != "train":
            clean = [row for row in rows if row[0] != f"{number}.{count}"]
            _write_part(folder / "trecqa" / part.replace("raw", "clean"), clean)
    for number, (part, count) in enumerate(WIKI_PARTS.items()):
        rows = [
            row
            for n in range(1, count + 1)
            for row in _rows(f"Q{number * 10 + n}", f"-D{n}-", n, False, rng)
        ]
        _write_part(folder / "wikiqa" / part, rows)
    _write_vectors(folder, [*SUBJECTS, *PLACES, *FILLER, "where", "is"], rng)
    numbers = range(1, TRAIN_ALL + 1)
    rows = [row for n in numbers for row in _rows(f"4.{n}", "", n, False, rng)]
    _write_part(folder / "trecqa" / "train-all", rows)
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


def _write_part(folder: Path, rows: list[Row]) -> None:
    folder.mkdir(parents=True)
    for name, column in {"id.txt": 0, "a.toks": 1, "b.toks": 2, "sim.txt": 3}.items():
        (folder / name).write_text("".join(f"{row[column]}\n" for row in rows))


def write_archive(path: Path, words: Sequence[str]) -> Path:
    """Write GloVe's archive with the words' vectors; the first number is a word's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for size in (50, 100):
            lines = [f"{word} {row}.0{' 0.5' * (size - 1)}\n" for row, word in enumerate(words)]
            archive.writestr(f"glove.6B.{size}d.txt", "".join(lines))
    return path


def _write_vectors(folder: Path, words: list[str], rng: random.Random) -> None:
    lines = [f"{len(words)} 8"]
    lines += [f"{word} " + " ".join(f"{rng.gauss(0, 1):.3f}" for _ in range(8)) for word in words]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
