"""Explain why reranking moved a topic's posts up or down.

    python -m pipeline.explain --topics mb2012 --query-id 51
    python -m pipeline.explain --topics mb2012 --query-id 51 --output page.html
    python -m pipeline.explain --topics sample --query-id 1 --doc-id 164 --doc-id 165
    python -m pipeline.explain --topics mb2012 --query-id 84 --reranker fusion

Each post is shown with its ranks before and after, and with reasons. For MP-HCNN, the
reasons are the matches of its similarity layer, as in table 6 of Rao et al. (AAAI
2019). For window and the fusions, they tell how much each family of features adds to
the post's score.
"""

from dataclasses import dataclass
from pathlib import Path

from tweetrerank.indexes.files import write_bytes
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import option, output_file, positive_int
from tweetrerank.pipeline.defaults import DEFAULT_HITS, NONE
from tweetrerank.pipeline.ranking.ranking_options import RankingOptions
from tweetrerank.pipeline.text import say

DEFAULT_SHOW = 10


@dataclass(frozen=True)
class Options(RankingOptions):
    """Topic, posts and ranking to explain."""

    query_id: str = option("the topic to explain", required=True)
    doc_id: tuple[str, ...] = option(
        "a post to explain; may be given several times (default: the best of the new "
        "ranking, and the largest gains and losses in rank)",
        many=True,
    )
    show: int | None = option(
        f"number of best posts of the new ranking (default: {DEFAULT_SHOW})",
        parse=positive_int,
    )
    output: Path | None = option(
        "write an HTML page instead of printing",
        parse=output_file,
        metavar="HTML",
    )

    def problems(self) -> list[str]:
        """Return a message for each contradiction between the arguments."""
        problems = super().problems()
        if self.reranker == NONE:
            problems.append(
                "--reranker none: there is nothing to explain; name a model"
            )
        if self.doc_id and self.show:
            problems.append("--show: --doc-id says already which posts are shown")
        return problems


def main(options: Options) -> None:
    """Rerank the topic's candidates, choose posts, and explain their ranks.

    The explanation is printed, or written as a page with --output.
    """
    from tweetrerank.pipeline.explanation.topic import topic_named
    from tweetrerank.pipeline.explanation.views import page, print_explanation

    collection = options.open_collection()
    # The ranker is opened before the topics are read, because it checks the arguments,
    # and the file of the topics may be missing.
    ranker = options.open_ranker(collection)
    topic = topic_named(options.query_id, collection.topics, collection.name)
    ranking = ranker.rank([topic], options.hits or DEFAULT_HITS)
    explanation = ranker.explain(
        ranking,
        options.doc_id,
        show=options.show or DEFAULT_SHOW,
    )
    if ranker.description:
        say(ranker.description)
    if options.output is None:
        print_explanation(explanation)
        return
    write_bytes(options.output, page(explanation).encode())
    say(f"wrote {options.output}")


if __name__ == "__main__":
    run("explain")
