"""What of a query the posts of one topic match, ready to be shown in a terminal or on a page.

The matches are from :mod:`rerankers.evidence`, the ranks beside them from
:mod:`pipeline.explanation.rank_changes`. Nothing here prints.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, cast

from pipeline.explanation.rank_changes import RankChange, visible

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.collections.trec import Topic
    from pipeline.reranking import Candidates, NeuralReranker
    from rerankers.evidence import Evidence, Span

STEPS = ("weak", "fair", "good", "exact or nearly so")
"""Names of the shades 1 to 4; 0 is none."""

_GROUPS = {
    "words": "words of the post",
    "post_trigrams": "letters of the post",
    "url_trigrams": "letters of the URL",
}


class Segment(NamedTuple):
    """Characters that follow one another and have the same shade, 0 (none) to 4."""

    text: str
    step: int


class Cell(NamedTuple):
    """How well something of the query is matched, and by which words of the post."""

    score: float | None
    step: int
    where: str = ""


class Row(NamedTuple):
    """A query word: its importance (IDF), and its matches, one for each column."""

    word: str
    weight: float
    cells: tuple[Cell, ...]


class Column(NamedTuple):
    """A perspective at a depth."""

    perspective: str
    level: int
    group: str
    heading: str


class Shading(NamedTuple):
    """A text or a URL, shaded by the matches of one column."""

    title: str
    segments: list[Segment]


@dataclass(frozen=True)
class PostView:
    """All that is shown of a post.

    Attributes:
        doc_id: its id.
        standing: its places.
        grade: judged relevance, None where there is none.
        text: the post as it was written, shaded by the matches of its words.
        url: its URL, shaded by the matches of its letters; empty if it has none.
        rows: a table of the query's words.
        further: the same texts shaded by the other columns.
    """

    doc_id: str
    standing: RankChange
    grade: int | None
    text: list[Segment]
    url: list[Segment]
    rows: list[Row]
    further: list[Shading]


@dataclass(frozen=True)
class Explanation:
    """One topic's ranking and what it is made of.

    Attributes:
        collection: name of the topics' source.
        query_id: of the topic.
        query: its text.
        first_stage: what found the candidates.
        model: name of the reranker, and where its weights are from.
        mixing: λ and where it is from, in words.
        candidates: how many posts were ranked.
        measure: what a match is, in words.
        bounds: from where on a match has the shades 1 to 4.
        columns: of the posts' tables.
        sections: heading -> posts.
    """

    collection: str
    query_id: str
    query: str
    first_stage: str
    model: str
    mixing: str
    candidates: int
    measure: str
    bounds: tuple[float, ...]
    columns: tuple[Column, ...]
    sections: Mapping[str, Sequence[PostView]]


def explain(
    collection: str, topic: "Topic", first_stage: str, mixing: str, reranker: "NeuralReranker",
    candidates: "Candidates", found: Mapping[str, RankChange], grades: Mapping[str, int],
    chosen: Mapping[str, Sequence[str]],
) -> Explanation:  # fmt: skip
    """What is shown of a topic.

    Args:
        collection: name of the topic's source.
        topic: the one that was ranked.
        first_stage: what found the candidates.
        mixing: λ and where it is from, in words.
        reranker: MP-HCNN.
        candidates: of the topic.
        found: doc_id -> places of every candidate.
        grades: doc_id -> judged relevance, as far as it is known.
        chosen: heading -> doc_ids of the posts to show, at least one.
    """
    from rerankers.evidence import bounds_of, compare, measure_of
    from rerankers.models.mp_hcnn import Model

    checkpoint = reranker.checkpoint
    model = cast(Model, checkpoint.model)
    shown = [candidates.posts[doc_id] for doc_ids in chosen.values() for doc_id in doc_ids]
    evidence = compare(
        model, checkpoint.encoder, topic.text, [p.text for p in shown], [p.url for p in shown]
    )
    bounds = bounds_of(model, evidence)
    inputs = {
        post.doc_id: view(post, found[post.doc_id], grades.get(post.doc_id), seen, bounds)
        for post, seen in zip(shown, evidence, strict=True)
    }
    weights = "/".join(checkpoint.directory.resolve().parts[-2:])
    return Explanation(
        collection, topic.query_id, topic.text, first_stage,
        f"{checkpoint.name}, weights {weights}", mixing, len(found), measure_of(model), bounds,
        columns_of(evidence[0]),
        {heading: [inputs[doc_id] for doc_id in doc_ids] for heading, doc_ids in chosen.items()},
    )  # fmt: skip


def paint(
    text: str, spans: "Iterable[Span]", values: Iterable[float], bounds: Sequence[float]
) -> list[Segment]:
    """A text in segments, each character as dark as the best value that a span gives to it.

    Args:
        text: as it was written.
        spans: where the parts are that have a value; they may share characters.
        values: how well each is matched; what goes beyond the shorter of both is left out.
        bounds: from where on a value has the shades 1, 2, ….
    """
    steps = [0] * len(text)
    for (start, end), value in zip(spans, values, strict=False):
        step = bisect_right(bounds, value)
        for place in range(start, end):
            steps[place] = max(steps[place], step)
    pairs = zip(visible(text), steps, strict=True)
    return [
        Segment("".join(c for c, _ in group), step)
        for step, group in groupby(pairs, key=lambda pair: pair[1])
    ]


def columns_of(evidence: "Evidence") -> tuple[Column, ...]:
    """Every perspective at every depth."""
    columns = []
    for name, matches in evidence.matches.items():
        for level in range(len(matches.levels)):
            reach = matches.reach(level)
            if name == "words":
                heading = "word" if reach == 1 else f"{reach} words"
            else:
                heading = f"{reach + 2} letters"
            columns.append(Column(name, level, _GROUPS[name], heading))
    return tuple(columns)


def view(
    post: "Post", standing: RankChange, grade: int | None, evidence: "Evidence",
    bounds: Sequence[float],
) -> PostView:  # fmt: skip
    """All that is shown of a post."""
    columns = columns_of(evidence)
    shaded = {
        column[:2]: _shade(post, evidence, column, bounds)
        for column in columns
        if column.perspective != "url_trigrams" or evidence.url
    }
    # Single words say most about a text; of a URL, which is one long word, longer pieces do.
    depth = max((column.level for column in columns), default=0)
    texts = [("words", 0), ("post_trigrams", min(1, depth))]
    main = next((key for key in texts if key in shaded), None)
    link = ("url_trigrams", min(1, depth))
    return PostView(
        post.doc_id, standing, grade,
        shaded[main] if main else paint(post.text, [], [], bounds),
        shaded[link] if link in shaded else paint(post.url.strip(), [], [], bounds),
        _rows(evidence, columns, bounds),
        [
            Shading(f"{column.group}, {column.heading}", shaded[column[:2]])
            for column in columns
            if column[:2] in shaded and column[:2] not in (main, link)
        ],
    )  # fmt: skip


def _shade(
    post: "Post", evidence: "Evidence", column: Column, bounds: Sequence[float]
) -> list[Segment]:
    from rerankers.evidence import trigram_spans

    values = evidence.matches[column.perspective].term_shades(column.level)
    if column.perspective == "words":
        return paint(post.text, [word.place for word in evidence.post_words], values, bounds)
    if column.perspective == "post_trigrams":
        spans = [s for word in evidence.post_words for s in trigram_spans(word.spans, word.text)]
        return paint(post.text, spans, values, bounds)
    return paint(post.url, evidence.url, values, bounds)


def _rows(evidence: "Evidence", columns: Sequence[Column], bounds: Sequence[float]) -> list[Row]:
    cells = [_cells(evidence, column, bounds) for column in columns]
    return [
        Row(word, float(weight), row)
        for word, weight, row in zip(
            evidence.query_words, evidence.weights, zip(*cells, strict=True), strict=True
        )
    ]


def _cells(evidence: "Evidence", column: Column, bounds: Sequence[float]) -> list[Cell]:
    """One column: a cell for each of the query's words."""
    from rerankers.evidence import mean_by_word

    matches = evidence.matches[column.perspective]
    best = matches.best(column.level)
    if column.perspective == "words":
        reach = matches.reach(column.level)
        return [
            Cell(
                float(score),
                bisect_right(bounds, score),
                "" if place is None
                else " ".join(w.text for w in evidence.post_words[place : place + reach]),
            )
            for score, place in zip(best, matches.where(column.level), strict=True)
        ]  # fmt: skip
    if column.perspective == "url_trigrams" and not evidence.url:
        return [Cell(None, 0)] * len(evidence.query_words)
    return [
        Cell(score, 0 if score is None else bisect_right(bounds, score))
        for score in mean_by_word(best, evidence.query_words)
    ]
