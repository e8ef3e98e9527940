"""Build training lists for fusions: the candidates and scores of all searches."""

from collections.abc import Sequence

from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.ranking.fusion_ranker import UnionRetriever
from tweetrerank.pipeline.ranking.retrievers import with_resources
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.training.training_lists import TrainingLists
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.rerankers.trees.fusion import Config


def fusion_lists(
    config: Config, collections: Sequence[Collection], judged_posts: bool = False
) -> JudgedCandidates:
    """Return the candidates of a fusion on the training topics.

    They have the scores of all its rankers. ``judged_posts`` says whether the model
    reads the judgments of other topics.
    """
    lists = TrainingLists(collections)
    for collection in collections:
        retriever = UnionRetriever.of(collection, config)
        say(f"candidates of {collection.name} by {', '.join(retriever.rankers)}")
        topics, judgments = lists.topics_of(collection)
        candidates = retriever.search(topics)
        candidates = with_resources(candidates, collection, judged_posts)
        prefix = ""
        if judgments.keys() & lists.qrels.keys():
            prefix = f"{collection.name}/"
        lists.add(
            collection.name, JudgedCandidates(candidates, judgments), prefix=prefix
        )
    return lists.joined()
