"""Random candidate lists, shared by the tests of families of features."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from helpers.reranking_samples import AWKWARD, POSTS, encoder
from rerankers import features
from rerankers.features._candidates import CandidateList
from rerankers.features._tables import PostTable, WordTable
from rerankers.pairs import FIRST_STAGE, Resources
from rerankers.text.spaces import ADAPTED, WordSpace

IDF = encoder().idf


def candidate_list(
    query: str,
    texts: Sequence[str],
    doc_ids: Sequence[str],
    signals: Mapping[str, npt.NDArray[np.float32]],
    urls: Sequence[str] = (),
    resources: Resources | None = None,
) -> CandidateList:
    """Candidates with these texts, and links if ``urls`` has one for each."""
    words = WordTable(IDF)
    posts = PostTable.read(texts, urls or [""] * len(texts), words)
    return CandidateList(query, posts, doc_ids, signals, words, resources or {}, texts)


def with_space(candidates: CandidateList, space: WordSpace) -> CandidateList:
    """The same candidates with word vectors of the collection."""
    return dataclasses.replace(candidates, resources={ADAPTED: space})


def random_list(
    query: str, count: int = 60, seed: int = 0, doc_ids: bool = True, scores: bool = True
) -> CandidateList:
    """Posts of random words of the samples, and some awkward posts.

    Scores have one decimal, so that some are equal.
    """
    random = np.random.default_rng(seed)
    known = [word for text, _ in POSTS for word in text.split()]
    lengths = random.integers(1, 14, size=count)
    texts = [" ".join(random.choice(known, size=length)) for length in lengths]
    texts = [*AWKWARD.values(), *texts][:count]
    # Two days, at 2^22 to the millisecond.
    ids = random.integers(2**54, 2**54 + 172_800_000 * 2**22, size=count)
    first_stage = random.normal(size=count).round(1).astype(np.float32)
    return candidate_list(
        query,
        texts,
        [str(i) for i in ids] if doc_ids else [],
        {FIRST_STAGE: first_stage} if scores else {},
    )


def of_texts(query: str, *texts: str) -> CandidateList:
    """These posts without scores, links and identifiers."""
    return candidate_list(query, texts, [], {})


def computed(family: str, candidates: CandidateList) -> dict[str, list[float]]:
    """Feature -> its values."""
    found = features.find(family)
    values = found.compute(candidates)
    assert values.shape == (len(candidates), len(found.NAMES)) and values.dtype == np.float32
    return dict(zip(found.NAMES, values.T.tolist(), strict=True))
