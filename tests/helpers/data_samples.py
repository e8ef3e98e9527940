"""Small data folders, made up, in the layout of the real collections."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

SUBJECTS = (
    "storm",
    "library",
    "marathon",
    "museum",
    "coffee",
    "satellite",
    "bakery",
    "election",
)
PLACES = (
    "harbour",
    "village",
    "bridge",
    "station",
    "market",
    "castle",
    "airport",
    "stadium",
)
CHATTER = (
    "lol",
    "today",
    "just",
    "really",
    "new",
    "watch",
    "via",
    "people",
    "love",
    "news",
)
FILLER = (
    "was",
    "the",
    "near",
    "old",
    "new",
    "first",
    "people",
    "year",
    "built",
    "known",
)

TREC_PARTS = {"train": 8, "raw-dev": 4, "raw-test": 4}
WIKI_PARTS = {"train": 8, "dev": 4, "test": 4}  # Part -> its number of questions
TRAIN_ALL = 12  # Questions of TrecQA's TRAIN-ALL
ANSWERS = (5, 6, 7)  # Numbers of answers of a part's questions, in turn

Row = tuple[str, str, str, int]  # id, question, answer, label


def write_microblog(
    folder: Path, topics: int = 8, posts: int = 14, seed: int = 1
) -> Path:
    """Write four years of topics, candidates, judgments and runs, and word vectors."""
    rng = Random(seed)
    for offset, year in enumerate((2011, 2012, 2013, 2014)):
        _write_year(folder / "microblog", year, offset * topics + 1, topics, posts, rng)
    _write_vectors(folder, [*SUBJECTS, *PLACES, *CHATTER], rng)
    return folder


def _write_year(
    folder: Path, year: int, first: int, topics: int, posts: int, rng: Random
) -> None:
    rows, judgments, descriptions = [], [], []
    for number in range(topics):
        query_id, query = (
            str(first + number),
            f"{SUBJECTS[number % 8]} {rng.choice(PLACES)}",
        )
        descriptions.append(
            f"<top>\n<num> Number: MB{first + number:03d} </num>\n<query> {query} </query>\n"
            f"<querytime> x </querytime>\n<querytweettime> 99999999 </querytweettime>\n</top>\n"
        )
        for rank in range(1, posts + 1):
            relevant = rng.random() < 0.4
            doc_id = str(10_000_000 + year * 1000 + number * 20 + rank)
            words = rng.sample(CHATTER, 4)
            words += (
                query.split()
                if relevant
                else [rng.choice(query.split()), rng.choice(PLACES)]
            )
            rng.shuffle(words)
            url = (
                f"http://news.example.com/{query.replace(' ', '-')}" if relevant else ""
            )
            hit = f"{query_id} Q0 {doc_id} {rank} {10 - rank / 10:.4f} ql"
            rows.append((query, " ".join(words), url, hit))
            judgments.append(f"{query_id} 0 {doc_id} {int(relevant)}")
    _write_columns(
        folder / f"trec-{year}", ("a.toks", "b.toks", "url.txt", "id.txt"), rows
    )
    for name in (f"run.microblog{year}.RM3.txt", f"mphcnn_trec_{year}_pred.txt"):
        _write_columns(folder / "runs", (name,), [row[3:] for row in rows])
    (folder / f"topics.microblog{year}.txt").write_text("\n".join(descriptions))
    _write_columns(
        folder, (f"qrels.microblog{year}.txt",), [(line,) for line in judgments]
    )


def _write_columns(
    folder: Path, names: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        (folder / name).write_text("".join(f"{value}\n" for value in column))


def write_answers(folder: Path, seed: int = 1) -> Path:
    """Write TrecQA, raw and clean, with both training parts, WikiQA, and word vectors. The last
    question of each raw part has no relevant answer; the clean parts lack it."""
    rng = Random(seed)
    for number, (part, count) in enumerate(TREC_PARTS.items(), start=1):
        rows = _rows(f"{number}.{{}}", count, rng, hopeless=count)
        write_part(folder / "trecqa" / part, rows)
        if part != "train":
            clean = [row for row in rows if row[0] != f"{number}.{count}"]
            write_part(folder / "trecqa" / part.replace("raw", "clean"), clean)
    for number, (part, count) in enumerate(WIKI_PARTS.items(), start=1):
        write_part(
            folder / "wikiqa" / part, _rows(f"Q{number}{{0}}-D{{0}}-{{1}}", count, rng)
        )
    _write_vectors(folder, [*SUBJECTS, *PLACES, *FILLER, "where", "is"], rng)
    write_part(folder / "trecqa" / "train-all", _rows("4.{}", TRAIN_ALL, rng))
    return folder


def _rows(answer_id: str, questions: int, rng: Random, hopeless: int = 0) -> list[Row]:
    """Answers of ``questions``, ``hopeless`` without a right one. The numbers of question and
    answer are put into ``answer_id``."""
    rows = []
    for number in range(1, questions + 1):
        subject, place = SUBJECTS[number % 8], rng.choice(PLACES)
        count = ANSWERS[number % len(ANSWERS)]
        right = set() if number == hopeless else set(rng.sample(range(count), 2))
        for n in range(count):
            words = rng.sample(FILLER, 4)
            words += (
                [subject, place]
                if n in right
                else [rng.choice([subject, place]), "year"]
            )
            rng.shuffle(words)
            question, answer = (
                f"where is the {subject} {place} ?",
                f"{' '.join(words)} .",
            )
            rows.append(
                (answer_id.format(number, n), question, answer, int(n in right))
            )
    return rows


def write_part(folder: Path, rows: list[Row]) -> None:
    _write_columns(folder, ("id.txt", "a.toks", "b.toks", "sim.txt"), rows)


def _write_vectors(folder: Path, words: list[str], rng: Random) -> None:
    lines = [f"{len(words)} 8"]
    lines += [
        f"{word} " + " ".join(f"{rng.gauss(0, 1):.3f}" for _ in range(8))
        for word in words
    ]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
