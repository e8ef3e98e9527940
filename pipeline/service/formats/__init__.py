"""Wire formats: a file for each project, chosen by a request's path and by its keys."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from pipeline.service.formats.base import Format
from pipeline.service.formats.cohere import Cohere, Jina
from pipeline.service.formats.infinity import Infinity
from pipeline.service.formats.tei import Tei, TeiPredict
from pipeline.service.formats.vllm import Vllm, VllmScores
from pipeline.service.formats.voyage import Voyage

TEI, PREDICT, COHERE, JINA = Tei(), TeiPredict(), Cohere(), Jina()
INFINITY, VLLM, SCORE, VOYAGE = Infinity(), Vllm(), VllmScores(), Voyage()

PATHS: Mapping[str, Sequence[Format]] = {
    "/rerank": (TEI, VOYAGE, INFINITY, VLLM),
    "/v1/rerank": (TEI, VOYAGE, JINA),
    "/v2/rerank": (TEI, COHERE),
    "/jina/rerank": (JINA,),
    "/": (TEI,),
    "/predict": (PREDICT,),
    "/score": (SCORE,),
    "/v1/score": (SCORE,),
}
"""Path -> its formats: the first whose keys a request has, else the last."""

_KEYS: Mapping[Format, Sequence[str]] = {
    TEI: ("texts",),
    VOYAGE: ("top_k", "truncation"),
    INFINITY: ("raw_scores", "return_documents"),
}


def format_of(path: str, keys: Container[str]) -> Format:
    """The format of a request to one of :data:`PATHS` with these keys."""
    *others, last = PATHS[path]
    for candidate in others:
        if any(key in keys for key in _KEYS[candidate]):
            return candidate
    return last


def assumed(path: str) -> Format:
    """The format for the errors of a request whose keys are not known."""
    if path.startswith("/v2/"):
        return COHERE
    if path in ("/score", "/v1/score"):
        return SCORE
    return JINA if path in ("/v1/rerank", "/jina/rerank") else TEI
