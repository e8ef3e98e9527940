"""Table 6 of Rao et al. (AAAI 2019): posts of a topic that gained and of one that lost."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.cells import Result, find_runs
from experiments.published import mp_hcnn
from experiments.tables.contract import Table, Workshop, markdown_table
from experiments.tables.evidence import TopicEvidence, cell_of, evidence_of
from experiments.tables.gains import Gains, gains_of
from pipeline.collections.trec import read_run
from pipeline.explanation.rank_changes import grade_text, places, visible

RELEVANT = 2
"""Relevant posts that are shown besides the one that MP-HCNN has first."""

NOTES = """\
Each word of the query is followed by its best match in the post (cosine of single words), then by
that of the two words from it on, then by that of its letters in the URL. `python -m
pipeline.explain` shades the texts themselves."""


class Samples(Table):
    """Of each year the topic with the largest gain and the one with the largest loss."""

    systems = (mp_hcnn.QL, mp_hcnn.MP_HCNN)
    collections = mp_hcnn.YEARS

    def usual(self, data: Path | None) -> Sequence[str]:
        """The year of the paper's samples."""
        return self.collections[:1]

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """A row for each post: the first by MP-HCNN, and relevant ones that moved most."""
        rows = [["topic", "post", "judged", "QL: score (rank)", "MP-HCNN", "matches"]]
        for name in dict.fromkeys(result.cell.collection for result in results):
            gains = gains_of(name, results, workshop)
            order = gains.order()
            for query_id, is_gain in ((order[0], True), (order[-1], False)):
                rows += _rows(gains, query_id, is_gain, results, workshop)
        return f"{markdown_table(rows)}\n\n{NOTES}"


def _rows(
    gains: Gains, query_id: str, is_gain: bool, results: Sequence[Result], workshop: Workshop
) -> list[list[str]]:
    cell = cell_of(gains, results)
    neural = read_run(find_runs(cell, workshop.directory, workshop.data)[0])[query_id]
    before, after = places(read_run(gains.collection.runs["ql"])[query_id]), places(neural)
    grades = gains.qrels[query_id]
    relevant = sorted(
        (doc_id for doc_id in neural if grades.get(doc_id, 0) > 0),
        key=lambda doc_id: before[doc_id].rank - after[doc_id].rank, reverse=is_gain,
    )  # fmt: skip
    first = min(after, key=lambda doc_id: after[doc_id].rank)
    doc_ids = list(dict.fromkeys([first, *relevant]))[: 1 + RELEVANT]
    topic = evidence_of(gains, query_id, doc_ids, results, workshop)
    return [
        [
            f"{query_id}: {topic.query} (AP {gains.neural[query_id]:+.2f})" if row == 0 else "",
            _cell(f"{post.text} {post.url}"),
            grade_text(grades.get(post.doc_id)),
            _place(before[post.doc_id]),
            _place(after[post.doc_id]),
            _matches(topic, row),
        ]
        for row, post in enumerate(topic.posts)
    ]


def _matches(topic: TopicEvidence, row: int) -> str:
    from rerankers.evidence import mean_by_word

    evidence = topic.evidence[row]
    columns: list[Mapping[int, float]] = []
    for name, level in (("words", 0), ("words", 1), ("url_trigrams", 1)):
        matches = evidence.matches.get(name)
        if matches is None or level >= len(matches.levels):
            continue
        values = list(matches.best(level))
        if name != "words":
            if not evidence.url:
                continue
            values = mean_by_word(matches.best(level), evidence.query_words)
        columns.append({place: value for place, value in enumerate(values) if value is not None})
    return ", ".join(
        " ".join([word, *(f"{column[place]:.2f}" for column in columns if place in column)])
        for place, word in enumerate(evidence.query_words)
    )


def _cell(text: str) -> str:
    """A post inside a table of Markdown."""
    return visible(" ".join(text.split())).replace("|", "\\|")


def _place(place: tuple[int, float]) -> str:
    rank, score = place
    return f"{score:.2f} (#{rank})"
