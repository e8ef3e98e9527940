"""Routes that describe the service: probes, metrics, models and OpenAPI."""

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tweetrerank.pipeline.service.formats import RERANK
from tweetrerank.pipeline.service.rerank_service import Service
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.rerankers.text.words import MAX_CHARACTERS


class Information:
    """The endpoints that describe a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.models = service.models

    def routes(self) -> list[Route]:
        """Return all routes."""
        description = openapi(needs_key=bool(self.service.limits.keys))
        return [
            Route("/health", self.health),
            Route("/ping", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
            Route("/info", self.info),
            Route("/models", self.list_models),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{id}", self.model),
            Route("/openapi.json", JSONResponse(description), methods=["GET"]),
        ]

    async def health(self, request: Request) -> Response:
        """Return status 200 if requests still get scored, else 503."""
        return _status(await self.service.queue.is_well(self.models.default))

    def ready(self, request: Request) -> Response:
        """Return status 200 if the queue has room for a request, else 503."""
        return _status(not self.service.queue.is_full)

    def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        queued = self.service.queue.queued
        content = self.service.metrics.text(queued, self.models.served.values())
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def info(self, request: Request) -> Response:
        """Return the fields of Text Embeddings Inference's ``/info``."""
        model = self.models.default
        limits = self.service.limits
        labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        content = {
            "model_id": model.name,
            "model_sha": model.version,
            "model_dtype": "float32",
            "served_model_name": model.name,
            "model_type": {"reranker": labels},
            "max_concurrent_requests": limits.waiting_requests,
            # TEI counts tokens; these are characters of a passage.
            "max_input_length": MAX_CHARACTERS,
            "long_documents": "best passage",
            "max_batch_tokens": limits.waiting_documents,
            "max_batch_requests": None,
            "max_client_batch_size": limits.documents,
            "auto_truncate": True,
            "tokenization_workers": self.service.queue.threads,
            "version": version("tweetrerank"),
            "sha": None,
            "docker_label": None,
        }
        return JSONResponse(content)

    def list_models(self, request: Request) -> Response:
        """Return the list of served models."""
        models = [_described(model) for model in self.models.served.values()]
        return JSONResponse({"object": "list", "data": models})

    def model(self, request: Request) -> Response:
        """Return the model that the path names.

        Raises RequestError if there is no such model.
        """
        request.state.format = RERANK
        model = self.models.choose(request.path_params["id"], takes_any=False)
        return JSONResponse(_described(model))


def _described(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "tweetrerank",
        "model_type": "rerank",
        "weight": model.weight,
        "reads_order": model.reads_lists,
    }


def _status(is_well: bool) -> Response:
    content = {"status": "ok" if is_well else "unavailable", "unix": time.time()}
    return JSONResponse(content, 200 if is_well else 503)


def openapi(needs_key: bool) -> dict[str, Any]:
    """Return the OpenAPI description of the service.

    Its schemas correspond to the structs in ``score_request.py``. Without
    ``needs_key`` it does not mention keys.
    """
    path = Path(__file__).parent / "openapi.json"
    description: dict[str, Any] = json.loads(path.read_text("utf-8"))
    description["info"]["version"] = version("tweetrerank")
    if not needs_key:
        del description["security"]
        del description["components"]["securitySchemes"]
    return description
