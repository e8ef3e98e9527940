"""Small data folders with made-up texts, in the layout of the real collections."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

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
WIKI_PARTS = {"train": 8, "dev": 4, "test": 4}
"""The number of questions in each part."""
TRAIN_ALL = 12  # Number of questions in TrecQA's TRAIN-ALL
ANSWERS = (5, 6, 7)  # Numbers of answers that the questions of a part have, in turn

YEARS = (2011, 2012, 2013, 2014)
TOPIC = """\
<top>
<num> Number: MB{number:03d} </num>
<query> {query} </query>
<querytime> x </querytime>
<querytweettime> 99999999 </querytweettime>
</top>
"""


class Hit(NamedTuple):
    """A post among the candidates of a topic: one line of each parallel file."""

    query: str
    text: str
    url: str
    line: str  # The line of a run


class Answer(NamedTuple):
    """An answer to a question: one line of each parallel file."""

    doc_id: str
    question: str
    text: str
    label: int


def write_microblog(
    folder: Path, topics: int = 8, posts: int = 14, seed: int = 1
) -> Path:
    """Write topics, candidates, judgments and runs of four years, and word vectors."""
    rng = Random(seed)
    first = 1
    for year in YEARS:
        numbers = range(first, first + topics)
        _write_year(folder / "microblog", year, numbers, posts, rng)
        first += topics
    _write_vectors(folder, SUBJECTS + PLACES + CHATTER, rng)
    return folder


def _write_year(
    folder: Path, year: int, numbers: range, posts: int, rng: Random
) -> None:
    hits: list[Hit] = []
    judgments: list[str] = []
    descriptions: list[str] = []
    for index, number in enumerate(numbers):
        query = f"{SUBJECTS[index % 8]} {rng.choice(PLACES)}"
        descriptions.append(TOPIC.format(number=number, query=query))
        for rank in range(1, posts + 1):
            relevant = rng.random() < 0.4
            doc_id = str(10_000_000 + year * 1000 + index * 20 + rank)
            line = f"{number} Q0 {doc_id} {rank} {10 - rank / 10:.4f} ql"
            hits.append(_hit(query, relevant, line, rng))
            judgments.append(f"{number} 0 {doc_id} {int(relevant)}")
    columns = ("a.toks", "b.toks", "url.txt", "id.txt")
    _write_columns(folder / f"trec-{year}", columns, hits)
    lines = [hit.line for hit in hits]
    _write_lines(folder / "runs" / f"run.microblog{year}.RM3.txt", lines)
    _write_lines(folder / "runs" / f"mphcnn_trec_{year}_pred.txt", lines)
    (folder / f"topics.microblog{year}.txt").write_text("\n".join(descriptions))
    _write_lines(folder / f"qrels.microblog{year}.txt", judgments)


def _hit(query: str, relevant: bool, line: str, rng: Random) -> Hit:
    """Return a post with all words of the query if it is relevant, or else with one."""
    words = rng.sample(CHATTER, 4)
    url = ""
    if relevant:
        words += query.split()
        url = f"http://news.example.com/{query.replace(' ', '-')}"
    else:
        words += [rng.choice(query.split()), rng.choice(PLACES)]
    rng.shuffle(words)
    return Hit(query, " ".join(words), url, line)


def _write_lines(path: Path, lines: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def _write_columns(
    folder: Path, names: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    for index, name in enumerate(names):
        _write_lines(folder / name, [row[index] for row in rows])


def write_answers(folder: Path, seed: int = 1) -> Path:
    """Write TrecQA (raw and clean, with both training parts), WikiQA and word vectors.

    The last question of each raw part has no relevant answer. The clean parts do not
    have this question.
    """
    rng = Random(seed)
    trecqa = folder / "trecqa"
    for number, (part, count) in enumerate(TREC_PARTS.items(), start=1):
        answers = _answers(f"{number}.{{}}", count, rng, hopeless=count)
        write_part(trecqa / part, answers)
        if part != "train":
            hopeless = f"{number}.{count}"
            clean = [answer for answer in answers if answer.doc_id != hopeless]
            write_part(trecqa / part.replace("raw", "clean"), clean)
    for number, (part, count) in enumerate(WIKI_PARTS.items(), start=1):
        answers = _answers(f"Q{number}{{0}}-D{{0}}-{{1}}", count, rng)
        write_part(folder / "wikiqa" / part, answers)
    words = SUBJECTS + PLACES + FILLER
    words += ("where", "is")
    _write_vectors(folder, words, rng)
    write_part(trecqa / "train-all", _answers("4.{}", TRAIN_ALL, rng))
    return folder


def _answers(
    answer_id: str, questions: int, rng: Random, hopeless: int = 0
) -> list[Answer]:
    """Return the answers to a number of ``questions``, with two right ones for each.

    The question with the number ``hopeless`` has no right answer. ``answer_id`` is a
    pattern into which the numbers of question and answer are put.
    """
    answers = []
    for number in range(1, questions + 1):
        subject = SUBJECTS[number % 8]
        place = rng.choice(PLACES)
        count = ANSWERS[number % len(ANSWERS)]
        right: list[int] = []
        if number != hopeless:
            right = rng.sample(range(count), 2)
        for index in range(count):
            words = rng.sample(FILLER, 4)
            if index in right:
                words += [subject, place]
            else:
                words += [rng.choice([subject, place]), "year"]
            rng.shuffle(words)
            answers.append(
                Answer(
                    answer_id.format(number, index),
                    f"where is the {subject} {place} ?",
                    f"{' '.join(words)} .",
                    int(index in right),
                )
            )
    return answers


def write_part(folder: Path, answers: Sequence[Sequence[object]]) -> None:
    """Write parallel files with the id, question, text and label of each answer."""
    _write_columns(folder, ("id.txt", "a.toks", "b.toks", "sim.txt"), answers)


def _write_vectors(folder: Path, words: Sequence[str], rng: Random) -> None:
    lines = [f"{len(words)} 8"]
    for word in words:
        values = " ".join(f"{rng.gauss(0, 1):.3f}" for _ in range(8))
        lines.append(f"{word} {values}")
    _write_lines(folder / "vectors.txt", lines)
