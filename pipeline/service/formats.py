"""The wire formats: the shapes of requests and responses that vendors' clients use.

To add a format, write a subclass of :class:`Rerank` and add an instance of it to
:data:`FORMATS`. The class names the paths of the format, writes its responses, and
describes its errors. All formats together read the request fields of
:class:`tweetrerank.pipeline.service.score_request.Request`.
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

    Voyage's clients read ``data`` in a response; the others read ``results``.
    """

    name = "rerank"
    paths: ClassVar[tuple[str, ...]] = ("/v1/rerank", "/v2/rerank", "/invocations")
    returns_texts: ClassVar[bool] = False
    """Whether a response contains the texts if the request does not say."""

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Return the body of a response as a value for orjson.

        If texts are returned, a document is an object in ``results`` and a string in
        ``data``. The tokens in ``usage`` are words.
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
        """Return the best documents as objects with index, score and perhaps text."""
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
        """Return the message under Cohere's and Voyage's keys, and the request's id."""
        return {"message": error.message, "detail": error.message, "id": request_id}


def _with_document_object(result: Mapping[str, Any]) -> Mapping[str, Any]:
    if "document" not in result:
        return result
    return {**result, "document": {"text": result["document"]}}


class Tei(Rerank):
    """The format of Text Embeddings Inference, whose responses are bare arrays.

    A request with ``texts`` has this format on every path. Of two documents with equal
    scores the later one comes first, as
    :func:`tweetrerank.pipeline.service.score_response.best_first` explains.
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
    """TEI's types of errors by our kinds. All other kinds have the type ``Validation``.
    """

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Return the index, the score and, if requested, the text of each document."""
        return self.results(response, "score", "text")

    def explain(self, error: RequestError, request_id: str) -> Any:
        """Return the message of the error, and its type in TEI."""
        return {
            "error": error.message,
            "error_type": self.types.get(error.kind, "Validation"),
        }


class Vllm(Rerank):
    """vLLM's format. It returns the texts unless the request declines them."""

    name = "vllm"
    paths = ("/rerank",)
    returns_texts = True
    statuses: ClassVar = {"value": 400}


class Infinity(Rerank):
    """Infinity's format. A document is a string, and there is no ``data``."""

    name = "infinity"
    paths = ("/infinity/rerank",)
    # In a response with status 422, its client expects the body that FastAPI sends.
    statuses: ClassVar = {"value": 400}

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Return the body of a response as a value for orjson."""
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
    """Return the format of a request.

    ``path`` must be one of a format. ``is_tei`` says that the request has ``texts``.
    """
    return TEI if is_tei else FORMAT_OF_PATH[path]


def assumed_format(path: str) -> Rerank:
    """Return the format for error responses while the body has not been read.

    ``path`` has no slash at its end, and may be any path.
    """
    if path == "/rerank":
        return TEI
    return FORMAT_OF_PATH.get(path, TEI)
