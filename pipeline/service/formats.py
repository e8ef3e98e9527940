"""Wire formats: the shapes of requests and responses that vendors' clients use.

To add a format, write a subclass of :class:`Rerank` and list an object of it in
:data:`FORMATS`. The class has the format's paths, writes its responses, and describes
its errors. Fields of requests are those of
:class:`tweetrerank.pipeline.service.score_request.Request` for all formats together.
"""

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from orjson import Fragment

from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.score_response import ScoreResponse
from tweetrerank.pipeline.service.service_errors import ErrorFormat, RequestError


class Rerank(ErrorFormat):
    """The format of Cohere, Jina, vLLM and LiteLLM, and of Voyage.

    The former read ``results``, Voyage reads ``data``.
    """

    name = "rerank"
    paths: ClassVar[tuple[str, ...]] = ("/v1/rerank", "/v2/rerank", "/invocations")
    returns_texts: ClassVar[bool] = False
    """Whether the response contains the texts, if the request leaves it open."""

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Return the body of a response as a value for orjson.

        A document is an object in ``results``, and a text in ``data``. Usage counts
        words.
        """
        data = self.results(response, "relevance_score", "document")
        version = "2" if record.path.startswith("/v2/") else "1"
        return {
            "id": record.request_id,
            "object": "list",
            "model": response.model,
            "mix": response.mix,
            "results": [_with_document_object(result) for result in data],
            "data": data,
            "meta": {
                "api_version": {"version": version},
                "billed_units": {"search_units": 1},
            },
            "usage": {"prompt_tokens": record.words, "total_tokens": record.words},
        }

    def results(
        self, response: ScoreResponse, score_field: str, text_field: str
    ) -> list[dict[str, Any]]:
        """Return the documents as objects, with their texts if these are returned."""
        has_texts = response.request.options.returns_texts
        if has_texts is None:
            has_texts = self.returns_texts
        results = []
        for row, score in response.best():
            result = {"index": row, score_field: Fragment(score)}
            if has_texts:
                result[text_field] = response.request.texts[row]
            results.append(result)
        return results

    def explain(self, error: RequestError, request_id: str) -> Any:
        """Return the message under Cohere's key and Voyage's, and the request's id."""
        return {"message": error.message, "detail": error.message, "id": request_id}


def _with_document_object(result: Mapping[str, Any]) -> Mapping[str, Any]:
    if "document" not in result:
        return result
    return {**result, "document": {"text": result["document"]}}


class Tei(Rerank):
    """Text Embeddings Inference of Hugging Face: the response is a bare array.

    A request with ``texts`` has this format on every path. Equal scores are ordered by
    :func:`tweetrerank.pipeline.service.score_response.best_first`: the later document
    comes first.
    """

    name = "tei"
    paths = ("/",)
    statuses: ClassVar = {
        "many": 422,
        "model": 422,
        "internal": 424,
    }
    types: ClassVar = {
        "empty": "Empty",
        "overload": "Overloaded",
        "deadline": "Overloaded",
        "internal": "Backend",
        "unready": "Unhealthy",
        "key": "Unauthorized",
        "path": "NotFound",
    }
    """Kind of an error -> TEI's type, if that is not ``Validation``."""

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Return index, score and, if requested, text of each document."""
        return self.results(response, "score", "text")

    def explain(self, error: RequestError, request_id: str) -> Any:
        """Return the message and TEI's type of the error."""
        return {
            "error": error.message,
            "error_type": self.types.get(error.kind, "Validation"),
        }


class Vllm(Rerank):
    """vLLM's format: texts are returned unless the request refuses them."""

    name = "vllm"
    paths = ("/rerank",)
    returns_texts = True
    statuses: ClassVar = {"value": 400}


class Infinity(Rerank):
    """Infinity's format: a document is a text, and there is no ``data``."""

    name = "infinity"
    paths = ("/infinity/rerank",)
    # Its client expects FastAPI's body in a 422.
    statuses: ClassVar = {"value": 400}

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Return the body of a response."""
        content = super().write(response, record)
        content["object"] = "rerank"
        content["results"] = content.pop("data")
        content["created"] = int(time.time())
        return content


RERANK = Rerank()
TEI = Tei()
FORMATS = (RERANK, TEI, Vllm(), Infinity())
FORMAT_OF_PATH: Mapping[str, Rerank] = {
    path: wire for wire in FORMATS for path in wire.paths
}


def format_of(path: str, is_tei: bool) -> Rerank:
    """Return the format of a request; ``is_tei`` means that it has ``texts``."""
    return TEI if is_tei else FORMAT_OF_PATH[path]


def assumed_format(path: str) -> Rerank:
    """Return the format for the errors of a request that cannot be read."""
    if path == "/rerank":
        return TEI
    return FORMAT_OF_PATH.get(path, TEI)
