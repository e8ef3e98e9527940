"""Build training lists for ``window``: the best posts of several first stages.

The lists have many forms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run, ranked
from tweetrerank.pipeline.ranking.frequencies import file_of, named_frequencies
from tweetrerank.pipeline.ranking.retrievers import (
    IndexRetriever,
    Retriever,
    doc_ids_of,
    retriever_for,
    with_resources,
)
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.training.disguise import disguised, disguised_frequencies
from tweetrerank.pipeline.training.memory_retrievers import ENGINES, memory_retrievers
from tweetrerank.pipeline.training.training_lists import TrainingLists
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.rerankers.checkpoint import GENERAL, OF_POSTS, idf_from
from tweetrerank.rerankers.pairs import Resources
from tweetrerank.rerankers.text.vocabulary import Idf
from tweetrerank.rerankers.trees.fusion import SEARCHES

WINDOW = 100  # Number of posts that most clients rerank, a window

WINDOWS = (20, 50, WINDOW, WINDOW, 200)
"""Sizes of windows. One of them is drawn for each topic and first stage."""

OFFICIAL_DEPTH = 1000  # One more size, for collections with official runs

BATCHES = (2, 4, 8, 8, 16, 32)
"""Sizes of the batches in which clients send a window."""

BATCHED_WINDOWS = (20, 50, WINDOW)  # Sizes of the windows that are sent in batches

FORMS = ("scores", "order", "nothing")
"""Forms in which ``window`` reads a first stage; see
:attr:`tweetrerank.pipeline.ranking.retrievers.Candidates.forms`."""

RANKED_FORMS = ("scores", "order")  # Forms of a window
SET_FORMS = ("nothing",)  # Form of a set, which has no first stage
BATCH_FORMS = ("scores", "nothing")  # Forms of batches

# Share of lists with substituted letters, which simulate an unknown language
DISGUISED = 0.3


def window_lists(
    collections: Sequence[Collection],
    most: int,
    judged_posts: bool = False,
    of_posts: bool = True,
) -> JudgedCandidates:
    """Return windows of the best posts of several first stages, for training.

    The first stages are the collection's default, all search methods, and the first
    stages of search engines. Each window has either its scores or only its order, so
    that a model learns to do without scores. Each topic also has one list without
    scores and order (a set), and one list that is sent in batches.

    Mixed collections (:class:`TrainingLists`) also have lists in a simulated unknown
    language. With ``of_posts``, half of their lists have the word frequencies of the
    collection's posts. If there is a single collection, the windows of :data:`WINDOW`
    posts of its default first stage keep their query_ids. All lists of a topic are held
    out together.

    Args:
        collections: collections with judgments.
        most: number of topics drawn for each first stage if there are several
            collections. It bounds time and memory.
        judged_posts: whether the model reads the judgments of other topics.
        of_posts: whether to use the word frequencies of posts.
    """
    lists = TrainingLists(collections)
    for collection in collections:
        say(f"windows of {collection.name}")
        topics, judgments = lists.topics_of(collection)
        variants = _Variants.of(collection, lists, of_posts)
        for number, retriever in enumerate(_first_stages(collection, lists.several)):
            stage_topics = lists.some(topics, most) if lists.several else topics
            candidates = retriever.search(stage_topics, max(variants.sizes))
            candidates = with_resources(candidates, collection, judged_posts)
            judged = JudgedCandidates(
                candidates,
                {topic.query_id: judgments[topic.query_id] for topic in stage_topics},
            )
            if number == 0 and not lists.several:
                sizes = np.full(len(stage_topics), WINDOW)
                lists.add(collection.name, _cut(judged, sizes), prefix="")
            variants.add_windows(judged)
        # A set is the same whichever search found it, so the last search is as good as
        # any.
        variants.add_set(judged)
        variants.add_batches(judged)
    return lists.joined()


@dataclass(frozen=True)
class _Variants:
    """Adds the candidates of one collection to the training lists in several forms."""

    collection: str  # Name of the collection
    lists: TrainingLists
    sizes: Sequence[int]  # Sizes of windows to draw from
    idf: Idf | None = None  # Word frequencies of the posts
    disguised_idf: Idf | None = None  # Frequencies of words with substituted letters

    @classmethod
    def of(
        cls, collection: Collection, lists: TrainingLists, of_posts: bool
    ) -> "_Variants":
        """Return the variants of a collection, with word frequencies of its posts.

        Without ``of_posts``, or if the collections are not mixed, they have no
        frequencies.
        """
        sizes = list(WINDOWS)
        if collection.runs:
            sizes.append(OFFICIAL_DEPTH)
        path = file_of(collection) if lists.are_mixed and of_posts else None
        if path is None:
            return cls(collection.name, lists, sizes)
        idf = Idf.read(path)
        general = idf_from(named_frequencies(GENERAL, collection))
        return cls(
            collection.name,
            lists,
            sizes,
            idf.smoothed(general, OF_POSTS),
            disguised_frequencies(idf).smoothed(general, OF_POSTS),
        )

    def add_windows(self, judged: JudgedCandidates) -> None:
        """Add a window of each topic, with its scores or only its order."""
        windows = self._windows(judged, self.sizes)
        self.lists.add(self.collection, windows, RANKED_FORMS, idf=self.idf)
        if self.lists.are_mixed:
            unreadable = self._disguised(windows)
            self.lists.add(
                self.collection, unreadable, RANKED_FORMS, idf=self.disguised_idf
            )

    def add_set(self, judged: JudgedCandidates) -> None:
        """Add a window of each topic as a set, without scores and order."""
        windows = self._windows(judged, self.sizes)
        self.lists.add(self.collection, windows, SET_FORMS, idf=self.idf)

    def add_batches(self, judged: JudgedCandidates) -> None:
        """Add a window of each topic in batches.

        The scores of all batches of a window must compare.
        """
        windows = self._windows(judged, BATCHED_WINDOWS)
        batches = _in_batches(windows, self.lists.rng)
        self.lists.add(self.collection, batches, BATCH_FORMS, idf=self.idf)
        if self.lists.are_mixed:
            batches = _in_batches(self._disguised(windows), self.lists.rng)
            self.lists.add(
                self.collection, batches, BATCH_FORMS, idf=self.disguised_idf
            )

    def _windows(
        self, judged: JudgedCandidates, sizes: Sequence[int]
    ) -> JudgedCandidates:
        """Return a window of each topic. Its size is drawn from ``sizes``."""
        return _cut(judged, self.lists.sizes(sizes, judged.candidates.topics))

    def _disguised(self, lists: JudgedCandidates) -> JudgedCandidates:
        """Return a share of the lists, with substituted letters."""
        topics = lists.candidates.topics
        drawn = self.lists.some(topics, round(DISGUISED * len(topics)))
        candidates = replace(lists.candidates, topics=drawn)
        return disguised(replace(lists, candidates=candidates))


def _in_batches(lists: JudgedCandidates, rng: np.random.Generator) -> JudgedCandidates:
    """Return the lists split into batches of drawn sizes.

    Half of the lists are put in random order first.
    """
    candidates = lists.candidates
    topics: list[Topic] = []
    wholes: list[str] = []
    run: Run = {}
    resources: dict[str, Resources] = {}
    qrels: Qrels = {}
    sizes = rng.choice(BATCHES, len(candidates.topics)).tolist()
    for topic, size in zip(candidates.topics, sizes, strict=True):
        whole = topic.query_id
        posts = ranked(candidates.run.get(whole, {}))
        if rng.random() < 0.5:
            posts = [posts[row] for row in rng.permutation(len(posts)).tolist()]
        for start in range(0, len(posts), size):
            query_id = f"{whole}/{start}"
            topics.append(topic._replace(query_id=query_id))
            wholes.append(whole)
            run[query_id] = dict(posts[start : start + size])
            resources[query_id] = candidates.resources.get(whole, {})
            qrels[query_id] = lists.qrels[whole]
    batches = replace(candidates, topics=topics, run=run, resources=resources)
    return JudgedCandidates(batches, qrels, wholes=wholes)


def _first_stages(collection: Collection, several: bool) -> list[Retriever]:
    """Return the default first stage, the other search methods, and those of engines.

    The first stages of engines are used only for models of several collections, and
    keep all posts in memory. Collections of questions with given answers have only
    first stages in memory.
    """
    if collection.answers:
        return list(memory_retrievers(collection))
    default = retriever_for(collection)
    retrievers = [default]
    for name in SEARCHES:
        if name in collection.methods and name != default.name:
            retrievers.append(retriever_for(collection, method=name))
    if several and collection.methods and not collection.engine:
        retrievers.append(IndexRetriever(collection.open_index(), ENGINES))
        retrievers += memory_retrievers(collection)
    return retrievers


def _cut(lists: JudgedCandidates, sizes: npt.NDArray[np.integer]) -> JudgedCandidates:
    """Return the best posts of each topic, as many as its size in ``sizes`` [Q]."""
    candidates = lists.candidates
    run: Run = {}
    for topic, size in zip(candidates.topics, sizes.tolist(), strict=True):
        best = dict(ranked(candidates.run.get(topic.query_id, {}))[:size])
        if best:
            run[topic.query_id] = best
    posts = {doc_id: candidates.posts[doc_id] for doc_id in doc_ids_of(run)}
    return replace(lists, candidates=replace(candidates, run=run, posts=posts))
