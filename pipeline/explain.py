"""Explain a ranking: ranks of a topic's posts before and after reranking, and reasons.

    python -m pipeline.explain --topics mb2012 --query-id 51
    python -m pipeline.explain --topics mb2012 --query-id 51 --candidates ql --output page.html
    python -m pipeline.explain --topics sample --query-id 1 --doc-id 164 --doc-id 165
    python -m pipeline.explain --topics mb2012 --query-id 84 --reranker fusion

The reasons: for MP-HCNN the matches of its similarity layer, as in table 6 of Rao et al. (AAAI
2019); for a fusion the contribution of each family of features to a post's score.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import did_you_mean, listed, option, output_file, positive_int
from pipeline.command.ranking import (
    AUTO,
    DEFAULT_HITS,
    DEFAULT_RERANKER,
    FUSIONS,
    RankingOptions,
    Setup,
    set_up,
    with_model,
)

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.collections.topics import Topic
    from pipeline.explanation.contributions import FusionExplanation
    from pipeline.explanation.matches import MatchExplanation
    from pipeline.explanation.rank_changes import RankChange
    from pipeline.ranking.ranker import Ranking

DEFAULT_SHOW = 10
EXPLAINED = (DEFAULT_RERANKER, *FUSIONS)


@dataclass(frozen=True)
class Options(RankingOptions):
    """Topic, posts and ranking to explain."""

    query_id: str = option("the topic to explain", required=True)
    doc_id: tuple[str, ...] = option(
        "a post to explain; may be given several times (default: the best of the new ranking, "
        "and the largest gains and losses in rank)",
        many=True,
    )
    show: int | None = option(
        f"number of best posts of the new ranking (default: {DEFAULT_SHOW})", parse=positive_int
    )
    output: Path | None = option(
        "write an HTML page instead of printing", parse=output_file, metavar="HTML"
    )

    def problems(self) -> list[str]:
        """Arguments that contradict one another."""
        problems = super().problems()
        if self.reranker not in (*EXPLAINED, AUTO):
            problems.append(
                f"--reranker: found {self.reranker!r}, expected one of {', '.join(EXPLAINED)}: "
                "the models with an explanation"
            )
        if self.doc_id and self.show:
            problems.append("--show: --doc-id says already which posts are shown")
        return problems


def main(options: Options) -> None:
    """Rerank the topic's candidates, choose posts, and explain their ranks."""
    options = with_model(options, EXPLAINED)
    setup = set_up(options)

    from indexes.files import atomic_file
    from pipeline.explanation.pages import page
    from pipeline.explanation.terminal import print_explanation
    from pipeline.ranking.ranker import rerank

    topic = _topic(options.query_id, setup.collection)
    hits = options.hits or DEFAULT_HITS
    ranking = rerank([topic], setup.retriever, setup.reranker, setup.mixing, hits)
    if not ranking.candidates.run.get(topic.query_id):
        raise DataError(
            f"topic {topic.query_id} “{topic.text}”: found no candidates to rank, expected some; "
            "try another topic or other candidates"
        )
    explanation = _explain(options, setup, topic, ranking)
    if options.output is None:
        print_explanation(explanation)
        return
    with atomic_file(options.output) as stream:
        stream.write(page(explanation))
    print(f"wrote {options.output}", file=sys.stderr)


def _topic(query_id: str, collection: Collection) -> Topic:
    topics = {topic.query_id: topic for topic in collection.topics}
    if query_id in topics:
        return topics[query_id]
    raise UsageError(
        f"--query-id: found {query_id!r}, expected a topic of {collection.name}: "
        f"{listed(list(topics), 8)}{did_you_mean(query_id, list(topics))}"
    )


def _chosen(
    options: Options, changes: Mapping[str, RankChange], topic: Topic
) -> dict[str, list[str]]:
    """Heading -> doc_ids of the posts to show."""
    from pipeline.explanation.rank_changes import choose

    if unknown := [doc_id for doc_id in options.doc_id if doc_id not in changes]:
        expected = (
            f"expected one of the {len(changes)} candidates of topic {topic.query_id}: "
            f"{listed(list(changes), 8)}"
        )
        raise UsageError([f"--doc-id: found {doc_id!r}, {expected}" for doc_id in unknown])
    named = list(dict.fromkeys(options.doc_id))
    return {"named posts": named} if named else choose(changes, options.show or DEFAULT_SHOW)


def _explain(
    options: Options, setup: Setup, topic: Topic, ranking: Ranking
) -> MatchExplanation | FusionExplanation:
    from pipeline.explanation import contributions, matches
    from pipeline.explanation.rank_changes import RerankedTopic, rank_changes
    from pipeline.ranking.fusion import Fusion
    from pipeline.ranking.ranker import NeuralReranker

    query_id, reranker = topic.query_id, setup.reranker
    before, after = ranking.candidates.run[query_id], ranking.run[query_id]
    if isinstance(reranker, Fusion):
        # Posts that are not scored follow below, and have nothing to explain.
        after = {doc_id: after[doc_id] for doc_id in before}
        changes = rank_changes({"mean of the rankers": before, "fused": after})
    else:
        assert ranking.scores is not None
        neural = ranking.scores[query_id]
        changes = rank_changes({"before": before, "neural": neural, "after": after})
    reranked = RerankedTopic(
        setup.collection.name,
        topic,
        ranking.candidates,
        changes,
        (setup.collection.qrels or {}).get(query_id, {}),
        _chosen(options, changes, topic),
    )
    if isinstance(reranker, Fusion):
        return contributions.explain(reranked, reranker.reranker)
    assert isinstance(reranker, NeuralReranker)
    weight, normalization, origin = setup.mixing
    # The page may be given away: without the path that follows.
    mixing = f"λ = {weight:g} ({origin.partition('; ')[0]}), scores normalised by {normalization}"
    return matches.explain(reranked, reranker, setup.retriever.name, mixing)


if __name__ == "__main__":
    run("explain")
