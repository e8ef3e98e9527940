"""Lists of candidates at random, shared by the tests of families of features."""

import numpy as np
from reranking_samples import AWKWARD, POSTS, encoder, vocabulary

from rerankers import features
from rerankers.base import FIRST_STAGE
from rerankers.candidates import CandidateList, Memo
from rerankers.unit_vectors import UnitVectors

IDF = encoder().idf
VECTORS = UnitVectors(vocabulary().known, vocabulary().vectors)


def random_list(
    query: str, count: int = 60, seed: int = 0, doc_ids: bool = True, scores: bool = True
) -> CandidateList:
    """Posts of words that are drawn from those of the samples; awkward ones among them.

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
    return CandidateList(
        query, texts, [""] * count, [str(i) for i in ids] if doc_ids else [],
        {FIRST_STAGE: first_stage} if scores else {}, IDF, Memo(),
    )  # fmt: skip


def of_texts(query: str, *texts: str) -> CandidateList:
    """These posts, without scores, links and identifiers."""
    return CandidateList(query, texts, [""] * len(texts), [], {}, IDF, Memo())


def computed(family: str, candidates: CandidateList) -> dict[str, list[float]]:
    """Feature -> its values, of which there must be as many as names."""
    found = features.find(family)
    values = found.compute(candidates)
    assert values.shape == (len(candidates), len(found.NAMES)) and values.dtype == np.float32
    return dict(zip(found.NAMES, values.T.tolist(), strict=True))
