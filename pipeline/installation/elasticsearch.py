"""Reranking inside Elasticsearch: a `custom` inference endpoint, and the search that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from indexes.engines.client import Engine, EngineError
from pipeline.command.errors import DataError
from pipeline.installation.parts import MARK, PATH, Part, Say, Service, Wish, fits

WINDOW = 100
"""Posts of a search that are reranked, as printed."""

MARKING = "X-Installed-By"
"""Header of the endpoint's requests that marks it as ours: endpoints have no description."""

TRIAL = {"query": "storm warning", "input": ["stay inside", "gale warning"]}


class Elasticsearch:
    """An inference endpoint in an Elasticsearch.

    Args:
        engine: the connection.
        name: of the endpoint.
    """

    fields = ("contents",)

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name, self.where = engine, name, engine.address.urls[0]

    def install(self, wish: Wish, agree: Callable[[str], None], say: Say) -> None:
        """Make the endpoint, or change it, and print a search.

        Raises:
            DataError: this version or licence has no such endpoint, or a wish cannot be had.
            EngineError: the engine refuses.
        """
        if self.engine.version and not _has_custom(self.engine.version):
            number = ".".join(map(str, self.engine.version))
            raise DataError(
                f"{self.where}: found Elasticsearch {number}, expected 8.19, or 9.1 or newer"
            )
        if len(wish.fields) > 1:
            raise DataError(
                f"found the fields {', '.join(wish.fields)}, expected one: Elasticsearch sends one "
                "to a reranker; leave the links out, or index one field that holds both"
            )
        if wish.default_for:
            raise DataError(
                "found --default-for, which is for OpenSearch; in Elasticsearch a search names the "
                "retriever"
            )
        old = self._own_endpoint()
        settings = _settings(wish.service, quoted=False)
        if (
            any(
                old and fits(_shown(_settings(wish.service, quoted)), old["service_settings"])
                for quoted in (False, True)
            )
            and self._try()
        ):
            say("endpoint", "unchanged")
        else:
            if old:
                self._delete()
            self._make(wish.service, settings)
            say("endpoint", "changed" if old else "made")
        say("trial", f"two texts have the scores {', '.join(map(str, self._trial()))}")
        print(json.dumps(search(wish, "storm warning"), indent=2), flush=True)

    def _own_endpoint(self) -> Mapping[str, Any] | None:
        """The endpoint; None without one.

        Raises:
            DataError: it is not ours.
        """
        try:
            found = self.engine.request("GET", f"/_inference/rerank/{self.name}")["endpoints"][0]
        except EngineError as error:
            if error.status == 404:
                return None
            raise self._explained(error) from None
        headers = found.get("service_settings", {}).get("headers", {})
        if not str(headers.get(MARKING, "")).startswith(MARK):
            raise DataError(
                f"{self.where}: found an inference endpoint {self.name} that this command has not "
                "made; choose another name by --pipeline"
            )
        return dict(found)

    def _make(self, service: Service, settings: Mapping[str, Any]) -> None:
        path, body = f"/_inference/rerank/{self.name}", {"service": "custom"}
        try:
            self.engine.request("PUT", path, body | {"service_settings": settings})
        except EngineError as error:
            if error.status != 400:
                raise self._explained(error) from None
            # Some versions put the query between quotes by themselves, and some do not.
            try:
                quoted = _settings(service, quoted=True)
                self.engine.request("PUT", path, body | {"service_settings": quoted})
            except EngineError:
                raise self._explained(error) from None
            print(
                "warning: this version of Elasticsearch does not escape queries: those with quotes "
                "will fail; take a newer one"
            )

    def _explained(self, error: EngineError) -> Exception:
        """An error with what to do about it, where that is known."""
        if "license" in str(error):
            return DataError(
                f"{self.where}: the licence has no inference endpoints ({error}); start a trial "
                "(POST /_license/start_trial?acknowledge=true), or put the service in front of the "
                "engine: tweetrerank serve --engine"
            )
        return error

    def _delete(self) -> None:
        params = {"force": True}  # A search that names it is no reason to keep it.
        self.engine.request("DELETE", f"/_inference/rerank/{self.name}", params=params)

    def _try(self) -> bool:
        try:
            self._trial()
        except DataError:
            return False
        return True

    def _trial(self) -> list[float]:
        """The scores of two texts, best first.

        Raises:
            DataError: it fails.
        """
        try:
            found = self.engine.request("POST", f"/_inference/rerank/{self.name}", TRIAL)["rerank"]
            scores = [one["relevance_score"] for one in found]
        except EngineError as error:
            raise DataError(
                f"the trial failed: {error}; does the engine reach the service, and is that the "
                "address of --service as seen from the engine?"
            ) from None
        if min(scores) < 0:
            raise DataError("the trial failed: found a score below 0, which the engine would bend")
        return scores

    def status(self, ask: Callable[[str, str], Service]) -> Iterator[Part]:
        """The state of each part; ``ask`` gives the service at an address."""
        number = ".".join(map(str, self.engine.version))
        yield Part("engine", True, f"Elasticsearch {number} at {self.where}")
        found = self._own_endpoint()
        if found is None:
            yield Part("endpoint", False, f"none of the name {self.name}; run engine install")
            return
        settings = found["service_settings"]
        url = settings["url"].removesuffix(PATH)
        yield Part("endpoint", True, f"{self.name} to {url}")
        try:
            yield Part("service", True, str(ask(url, settings["headers"].get("X-Model", ""))))
        except DataError as error:
            yield Part("service", False, str(error))
        try:
            scores = ", ".join(map(str, self._trial()))
            yield Part("trial", True, f"two texts have the scores {scores}")
        except DataError as error:
            yield Part("trial", False, str(error))

    def remove(self, say: Say) -> None:
        """Remove the endpoint."""
        if self._own_endpoint():
            self._delete()
            say("endpoint", "removed")


def search(wish: Wish, query: str) -> dict[str, Any]:
    """A search that mixes both scores by λ, as :mod:`pipeline.ranking.interpolation` does."""
    field, weight = wish.fields[0], wish.service.weight
    first = {"standard": {"query": {"match": {field: query}}}}
    reranked = {
        "text_similarity_reranker": {
            "retriever": first,
            "field": field,
            "inference_id": wish.name,
            "inference_text": query,
            "rank_window_size": WINDOW,
        }
    }
    parts = [(reranked, weight), (first, round(1 - weight, 6))]
    retrievers = [
        {"retriever": one, "weight": share, "normalizer": "minmax"} for one, share in parts
    ]
    return {"retriever": {"linear": {"retrievers": retrievers, "rank_window_size": WINDOW}}}


def _has_custom(version: Sequence[int]) -> bool:
    return tuple(version) >= (9, 1) or (8, 19) <= tuple(version) < (9,)


def _settings(service: Service, quoted: bool) -> dict[str, Any]:
    """The endpoint's settings.

    Scores are shifted: Elasticsearch keeps those from 0 on, as 1 + s, and bends those below; minmax
    takes the shift out again.
    """
    query = '"${query}"' if quoted else "${query}"
    parts = f'"model": {json.dumps(service.model)}, "query": {query}, "documents": ${{input}}'
    return {
        "secret_parameters": {"api_key": service.key},
        "url": service.url + PATH,
        "headers": {
            "Authorization": "Bearer ${api_key}",
            "Content-Type": "application/json",
            MARKING: MARK,
            "X-Model": service.model,
        },
        "request": f'{{{parts}, "shift": true}}',
        "response": {
            "json_parser": {
                "relevance_score": "$.results[*].relevance_score",
                "reranked_index": "$.results[*].index",
            }
        },
    }


def _shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that Elasticsearch gives back: all but the secret ones."""
    return {name: value for name, value in settings.items() if name != "secret_parameters"}
