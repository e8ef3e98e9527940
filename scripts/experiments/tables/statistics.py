"""Table 2 of Rao et al. (AAAI 2019): how large the collections are."""

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.cells import Result
from experiments.published import mp_hcnn
from experiments.published.system import System
from experiments.tables.contract import Table, Workshop, markdown_table
from pipeline.collections import named as test_collections
from pipeline.collections.collection import Collection
from pipeline.collections.trec import read_run

_HASHTAG = re.compile(r"(?:^|\s)##?\s?\w")

NOTES = """\
Counted over the topics and pairs of the official QL run: relevant documents are those among the
candidates; words are distinct ones of the candidates, read as the models read them; OOV words are
those without a GloVe vector here; URLs and hashtags count pairs whose post has one. The paper does
not say how it counts. Topics, pairs and URLs come out the same, hashtags within 2 %. The paper has
fewer than half of the words, and no way to read them that was tried gives both its words and its
OOV words. Relevant documents of 2012 and 2013 are within 2 % of what the paper has for 2013 and
2012, as if these had changed places; those of 2011 are 7 % more."""


class Statistics(Table):
    """Ours and, in parentheses, the paper's."""

    systems: Sequence[System] = ()
    collections = mp_hcnn.YEARS

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """A row for each number, a column for each year whose files are here."""
        present = [
            name
            for name in workshop.asked or self.collections
            if not test_collections.find(name, workshop.data).missing()
        ]
        known = _known_words(workshop.data)
        counted = {
            name: _count(test_collections.find(name, workshop.data), known) for name in present
        }
        rows = [["", *present]]
        for what, printed in mp_hcnn.STATISTICS.items():
            row = [what]
            for name in present:
                ours = counted[name][what]
                paper = printed[self.collections.index(name)]
                row.append(f"{'-' if ours is None else format(ours, ',')} ({paper:,})")
            rows.append(row)
        return f"{markdown_table(rows)}\n\n{NOTES}"


def _known_words(data: Path | None) -> set[str]:
    from rerankers.text.vectors import read_vectors

    path = test_collections.data_directory(data) / "embeddings" / "glove.6B.100d.bin.gz"
    return set(read_vectors(path).words)


def _count(collection: Collection, known: set[str]) -> dict[str, int | None]:
    from rerankers.text.words import words

    run, qrels = read_run(collection.runs["ql"]), collection.qrels
    posts = {post.doc_id: post for post in collection.posts()}
    pairs = [(query_id, doc_id) for query_id, scores in run.items() for doc_id in scores]
    found = {word for _, doc_id in pairs for word in words(posts[doc_id].text)}
    return {
        "topics": len(run),
        "query-document pairs": len(pairs),
        "relevant documents": None if qrels is None else sum(
            qrels.get(query_id, {}).get(doc_id, 0) > 0 for query_id, doc_id in pairs
        ),
        "unique words": len(found),
        "unique OOV words": len(found - known),
        "URLs": sum(bool(posts[doc_id].url) for _, doc_id in pairs),
        "hashtags": sum(bool(_HASHTAG.search(posts[doc_id].text)) for _, doc_id in pairs),
    }  # fmt: skip
