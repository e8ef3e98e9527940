"""Reranking inside Elasticsearch: a `custom` inference endpoint, and the search that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from indexes.engines.client import EngineError
from pipeline.command.errors import DataError
from pipeline.installation.parts import (
    MARK,
    PATH,
    Connect,
    Installation,
    Installer,
    Part,
    RerankService,
    fits,
    report,
    starts_with_mark,
    state_of,
)

WINDOW = 100  # Posts of a search that are reranked, as printed

MARKING = "X-Installed-By"
"""Header of the endpoint's requests that marks it as ours: endpoints have no description."""

TRIAL = {"query": "storm warning", "input": ["stay inside", "gale warning"]}


class Elasticsearch(Installer):
    """An inference endpoint."""

    product = "Elasticsearch"
    fields = ("contents",)

    @property
    def _path(self) -> str:
        return f"/_inference/rerank/{self.name}"

    def install(self, installation: Installation, confirm: Callable[[str], None]) -> None:
        """Make the endpoint, or change it, and print a search; see :class:`Installer`."""
        self._check(installation)
        old, service = self._endpoint(), installation.service
        kept = old and old["service_settings"]
        # Some versions put the query between quotes by themselves, and some do not.
        fitting = [quoted for quoted in (False, True) if fits(_shown(service, quoted), kept)]
        if fitting and self._trial_part().works:
            report("endpoint", "unchanged")
        else:
            if old:
                self._delete()
            self._make(service)
            report("endpoint", "changed" if old else "made")
        report("trial", self._trial())
        print(json.dumps(search(installation, self.name, "storm warning"), indent=2), flush=True)

    def _check(self, installation: Installation) -> None:
        version = tuple(self.engine.version)
        if version and not (version >= (9, 1) or (8, 19) <= version < (9,)):
            raise DataError(
                f"{self.where}: found Elasticsearch {self.version}, expected 8.19, or 9.1 or newer"
            )
        if len(installation.fields) > 1:
            raise DataError(
                f"found the fields {', '.join(installation.fields)}, expected one: Elasticsearch "
                "sends one to a reranker; leave the links out, or index one field that holds both"
            )
        if installation.default_for:
            raise DataError(
                "found --default-for, which is for OpenSearch; in Elasticsearch a search names the "
                "retriever"
            )

    def _endpoint(self) -> Mapping[str, Any] | None:
        """The endpoint; None without one. Raises DataError if it is not ours."""
        try:
            endpoint: Mapping[str, Any] = self.engine.request("GET", self._path)["endpoints"][0]
        except EngineError as error:
            if error.status == 404:
                return None
            raise self._explained(error) from None
        headers = endpoint.get("service_settings", {}).get("headers", {})
        if not starts_with_mark(headers.get(MARKING)):
            raise self.of_others("an inference endpoint")
        return endpoint

    def _make(self, service: RerankService) -> None:
        try:
            self._put(_settings(service, quoted=False))
        except EngineError as error:
            if error.status != 400:
                raise self._explained(error) from None
            try:
                self._put(_settings(service, quoted=True))
            except EngineError:
                raise self._explained(error) from None
            print(
                "warning: this version of Elasticsearch does not escape queries: those with quotes "
                "will fail; take a newer one"
            )

    def _put(self, settings: Mapping[str, Any]) -> None:
        self.engine.request("PUT", self._path, {"service": "custom", "service_settings": settings})

    def _explained(self, error: EngineError) -> Exception:
        """An error with its remedy, where that is known."""
        if "no handler found" in str(error):
            what, remedy = "has no inference endpoints", "take a complete distribution"
        elif "license" in str(error):
            what = f"has a licence without inference endpoints ({error})"
            remedy = "start a trial (POST /_license/start_trial?acknowledge=true)"
        else:
            return error
        return DataError(
            f"{self.where}: this Elasticsearch {what}; {remedy}, or put the service in front of "
            "the engine: tweetrerank serve --engine URL --engine-index NAME"
        )

    def _delete(self) -> None:
        # A search that names it is no reason to keep it.
        self.engine.request("DELETE", self._path, params={"force": True})

    def _trial(self) -> str:
        """The scores of two texts; raises DataError if it fails."""
        try:
            ranks = self.engine.request("POST", self._path, TRIAL)["rerank"]
        except EngineError as error:
            raise self.failed(error) from None
        scores = [rank["relevance_score"] for rank in ranks]
        if min(scores) < 0:
            raise DataError("the trial failed: found a score below 0, which the engine would bend")
        return f"two texts have the scores {', '.join(map(str, scores))}"

    def _trial_part(self) -> Part:
        return state_of("trial", self._trial)

    def parts(self, connect: Connect) -> Iterator[Part]:
        """The state of each part."""
        endpoint = self._endpoint()
        if endpoint is None:
            yield Part("endpoint", False, f"none of the name {self.name}; run engine install")
            return
        settings = endpoint["service_settings"]
        url = settings["url"].removesuffix(PATH)
        yield Part("endpoint", True, f"{self.name} to {url}")
        model = settings["headers"].get("X-Model", "")
        yield state_of("service", lambda: str(connect(url, model)))
        yield self._trial_part()

    def remove(self) -> None:
        """Remove the endpoint."""
        if self._endpoint():
            self._delete()
            report("endpoint", "removed")


def search(installation: Installation, endpoint: str, query: str) -> dict[str, Any]:
    """A search that mixes both scores by λ, as :mod:`pipeline.ranking.interpolation` does."""
    field, weight = installation.fields[0], installation.service.weight
    first = {"standard": {"query": {"match": {field: query}}}}
    reranked = {
        "text_similarity_reranker": {
            "retriever": first,
            "field": field,
            "inference_id": endpoint,
            "inference_text": query,
            "rank_window_size": WINDOW,
        }
    }
    retrievers = [
        {"retriever": retriever, "weight": share, "normalizer": "minmax"}
        for retriever, share in ((reranked, weight), (first, round(1 - weight, 6)))
    ]
    return {"retriever": {"linear": {"retrievers": retrievers, "rank_window_size": WINDOW}}}


def _settings(service: RerankService, quoted: bool) -> dict[str, Any]:
    """The endpoint's settings.

    Scores are shifted: Elasticsearch keeps those from 0 on, as 1 + s, and bends those below; minmax
    takes the shift out again.
    """
    return {"secret_parameters": {"api_key": service.key}, **_shown(service, quoted)}


def _shown(service: RerankService, quoted: bool) -> dict[str, Any]:
    """The settings that Elasticsearch gives back: all but the secret ones."""
    query = '"${query}"' if quoted else "${query}"
    parts = f'"model": {json.dumps(service.model)}, "query": {query}, "documents": ${{input}}'
    return {
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
