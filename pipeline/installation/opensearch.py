"""Reranking inside OpenSearch: connector, model and search pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from indexes.engines.client import EngineError
from pipeline.command.errors import DataError
from pipeline.installation import settings
from pipeline.installation.parts import (
    MARK,
    PATH,
    Connect,
    Installation,
    Installer,
    Part,
    fits,
    report,
    starts_with_mark,
    state_of,
)

DEPLOYMENT = 60.0  # Seconds until a model answers, at most
READING = 30  # Seconds that the engine waits for the service's scores

ML = "/_plugins/_ml"
DEFAULT = "index.search.default_pipeline"
TRIAL = {"query_text": "storm warning", "text_docs": ["stay inside", "gale warning"]}


class OpenSearch(Installer):
    """A connector, a model and search pipelines."""

    product = "OpenSearch"
    fields = ("contents", "url")  # Fields of an index by :mod:`pipeline.index`

    @property
    def description(self) -> str:
        """Description of our parts."""
        return f"{MARK} for the search pipeline {self.name}; remove it by the same command."

    @property
    def pipelines(self) -> dict[str, bool]:
        """Name -> whether it lets searches pass unranked that it cannot rerank."""
        return {self.name: False, f"{self.name}-default": True}

    def install(self, installation: Installation, confirm: Callable[[str], None]) -> None:
        """Make missing parts, and change those that differ; see :class:`Installer`."""
        self._check_plugins()
        default_for, fields = installation.default_for, installation.fields
        if default_for:
            self._check_default(default_for)
            self._check_fields(default_for, fields)
        for name in self.pipelines:
            self._pipeline(name)
        changes = settings.missing(self.engine, installation.service.url)
        if changes:
            confirm(settings.shown(changes))
            settings.change(self.engine, changes)
        report("settings", "changed" if changes else "unchanged")
        model = self._install_model(installation)
        for name, is_lenient in self.pipelines.items():
            if not is_lenient or default_for or self._pipeline(name):
                self._install_pipeline(name, is_lenient, model, fields)
        self._remove_models(but=model)
        if default_for:
            self._install_default(default_for)
        report("trial", self._trial(model, default_for or self._index_with(fields)))

    # --- connector and model ----------------------------------------------------------------------

    def _connector(self, installation: Installation) -> dict[str, Any]:
        service = installation.service
        more = ', "needs_text": true'
        more += ', "links": "around"' if len(installation.fields) > 1 else ""
        more += ', "mix": "lexical"' if service.lexical else ""
        action = {
            "action_type": "PREDICT",
            "method": "POST",
            "url": service.url + PATH,
            "headers": {
                "Authorization": "Bearer ${credential.key}",
                "Content-Type": "application/json",
            },
            "request_body": '{ "documents": ${parameters.documents}, '
            '"query": "${parameters.query}", "model": "${parameters.model}", '
            f'"top_n": ${{parameters.top_n}}{more} }}',
            "pre_process_function": "connector.pre_process.cohere.rerank",
            "post_process_function": "connector.post_process.cohere.rerank",
        }
        return {
            "name": self.name,
            "description": self.description,
            "version": "1",
            "protocol": "http",
            "parameters": {"model": service.model},
            # The timeouts are in seconds; without them some versions wait for hours.
            "client_config": {
                "max_connection": 30,
                "connection_timeout": 5,
                "read_timeout": READING,
                "max_retry_times": 2,
                "retry_backoff_millis": 200,
                "retry_timeout_seconds": 30,
                "retry_backoff_policy": "constant",
            },
            "actions": [action],
        }

    def _install_model(self, installation: Installation) -> str:
        """The id of a deployed model with a connector as it is to be."""
        wanted, service = self._connector(installation), installation.service
        connectors = self._own("connectors")
        good = [
            c for c in connectors if fits(wanted, self.engine.request("GET", _at("connectors", c)))
        ]
        models = [
            model
            for model, content in self._own("models").items()
            if content.get("connector_id") in good and self._answers(model)
        ]
        if models:
            report("connector", "unchanged")
            report("model", self._deployed(models[0]))
            return models[0]
        secret = {"credential": {"key": service.key}}
        made = self.engine.request("POST", f"{ML}/connectors/_create", wanted | secret)
        report("connector", "made anew" if connectors else "made")
        body = {
            "name": self.name,
            "function_name": "remote",
            "description": self.description,
            "connector_id": made["connector_id"],
        }
        registered = self.engine.request("POST", f"{ML}/models/_register", body)
        model = registered.get("model_id")
        if not model:  # Older versions do not tell it at once.
            task = self._awaited(_at("tasks", registered["task_id"]), "state", "COMPLETED")
            model = task["model_id"]
        self._deployed(model)
        report("model", "registered and deployed")
        return str(model)

    def _answers(self, model: str) -> bool:
        """Whether a model's connector has the right key: this cannot be read, only tried."""
        try:
            self._deployed(model)
            self._predict(model)
        except EngineError as error:
            # The engine passes the service's status on.
            return error.status != 401
        return True

    def _deployed(self, model: str) -> str:
        """Deploy a model and wait until it is; gives a report."""
        path = _at("models", model)
        state = self.engine.request("GET", path)["model_state"]
        if state == "DEPLOYED":
            return "unchanged"
        if state != "DEPLOYING":
            self.engine.request("POST", f"{path}/_deploy")
        self._awaited(path, "model_state", "DEPLOYED")
        return f"deployed (it was {state})"

    def _awaited(self, path: str, key: str, wanted: str) -> dict[str, Any]:
        """The content of a path, once its ``key`` is ``wanted``."""
        end = time.monotonic() + DEPLOYMENT
        while time.monotonic() < end:
            content: dict[str, Any] = self.engine.request("GET", path)
            if content.get(key) == wanted:
                return content
            if "FAILED" in str(content.get(key)):
                break
            time.sleep(0.2)
        raise DataError(
            f"{self.where}{path}: found {content.get(key)}, expected {wanted}: "
            f"{content.get('error', f'it did not come within {DEPLOYMENT:.0f} s')}"
        )

    def _own(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Id -> content of our connectors, models or model groups."""
        body = {"size": 100, "query": {"bool": {"filter": [{"term": {"name.keyword": self.name}}]}}}
        hits = self.engine.request("POST", f"{ML}/{kind}/_search", body)["hits"]["hits"]
        return {
            hit["_id"]: hit["_source"]
            for hit in hits
            if starts_with_mark(hit["_source"].get("description"))
        }

    def _check_plugins(self) -> None:
        try:
            self._own("connectors")
        except EngineError as error:
            if error.status not in (400, 404, 405):
                raise
            raise DataError(
                f"{self.where}: this OpenSearch lacks ML Commons ({error}); install the plugins "
                "opensearch-ml and opensearch-neural-search, which the official distribution has"
            ) from None

    # --- search pipelines -------------------------------------------------------------------------

    def _pipeline(self, name: str) -> Mapping[str, Any] | None:
        """A search pipeline of ours; None without one. Raises DataError if it is not ours."""
        try:
            pipeline = self.engine.request("GET", f"/_search/pipeline/{name}").get(name)
        except EngineError as error:
            if error.status != 404:
                raise
            return None
        if pipeline and not starts_with_mark(pipeline.get("description")):
            raise self.of_others("a search pipeline")
        return pipeline or None

    def _install_pipeline(
        self, name: str, is_lenient: bool, model: str, fields: Sequence[str]
    ) -> None:
        # OpenSearch joins fields without a blank; the service finds a link that is at both ends.
        joined = [fields[1], fields[0], fields[1]] if len(fields) > 1 else list(fields)
        processor = {
            "tag": "tweetrerank",
            "ignore_failure": is_lenient,
            "ml_opensearch": {"model_id": model},
            "context": {"document_fields": joined},
        }
        wanted = {
            "description": self.description,
            "version": 1,
            "response_processors": [{"rerank": processor}],
        }
        old = self._pipeline(name)
        if fits(wanted, old):
            report(f"pipeline {name}", "unchanged")
            return
        self.engine.request("PUT", f"/_search/pipeline/{name}", wanted)
        report(f"pipeline {name}", "changed" if old else "made")

    # --- indexes ----------------------------------------------------------------------------------

    def _defaults(self, index: str = "_all") -> dict[str, str | None]:
        """Index -> its default pipeline."""
        params = {"flat_settings": True}
        indexes = self.engine.request("GET", f"/{index}/_settings", params=params)
        return {name: content["settings"].get(DEFAULT) for name, content in indexes.items()}

    def _check_default(self, index: str) -> None:
        for name, pipeline in self._defaults(index).items():
            if pipeline not in (None, "_none", *self.pipelines):
                raise DataError(
                    f"{self.where}/{name}: found the default pipeline {pipeline}, which --default-"
                    f"for would replace; add the rerank processor of the pipeline {self.name} to it"
                )

    def _check_fields(self, index: str, fields: Sequence[str]) -> None:
        for name, content in self.engine.request("GET", f"/{index}/_mapping").items():
            if problem := lacking(content["mappings"], fields):
                raise DataError(f"{self.where}/{name}: {problem}")

    def _index_with(self, fields: Sequence[str]) -> str | None:
        """An index with all fields, to try the pipeline on; None without one."""
        try:
            indexes = self.engine.request("GET", "/_mapping")
        except EngineError:
            return None  # Who may not see all indexes may still install.
        names = (
            name
            for name, content in sorted(indexes.items())
            if not name.startswith(".") and not lacking(content["mappings"], fields)
        )
        return next(names, None)

    def _install_default(self, index: str) -> None:
        lenient = f"{self.name}-default"
        if set(self._defaults(index).values()) == {lenient}:
            report(f"default of {index}", "unchanged")
            return
        self.engine.request("PUT", f"/{index}/_settings", {DEFAULT: lenient})
        report(f"default of {index}", f"{lenient}: searches without ext.rerank pass unranked")

    # --- trial ------------------------------------------------------------------------------------

    def _predict(self, model: str) -> Any:
        return self.engine.request("POST", f"{ML}/_predict/text_similarity/{model}", TRIAL)

    def _trial(self, model: str, index: str | None = None) -> str:
        """Rerank two texts, and search in an index if there is one; raises DataError."""
        try:
            output = self._predict(model)["inference_results"][0]["output"]
            first, second = (score["data"][0] for score in output)
            posts = self._reranked(index) if index else None
        except EngineError as error:
            raise self.failed(error) from None
        except (KeyError, IndexError, TypeError, ValueError):
            raise DataError(f"the trial failed: found no scores of model {model}") from None
        if posts is None:
            return f"two texts have the scores {first:.4f} and {second:.4f}"
        return f"a search in {index} reranks {posts} posts"

    def _reranked(self, index: str) -> int | None:
        """The number of posts that a search reranks; None if the index was deleted meanwhile."""
        body = {
            "size": 10,
            "query": {"match_all": {}},
            "ext": {"rerank": {"query_context": {"query_text": TRIAL["query_text"]}}},
        }
        params = {"search_pipeline": self.name}
        try:
            found = self.engine.request("POST", f"/{index}/_search", body, params)
        except EngineError as error:
            if error.kind == "index_not_found_exception":
                return None
            raise
        return len(found["hits"]["hits"])

    # --- status and removal -----------------------------------------------------------------------

    def parts(self, connect: Connect) -> Iterator[Part]:
        """The state of each part."""
        self._check_plugins()
        models, model = self._own("models"), self._model_of(self.name)
        connector = models.get(model or "", {}).get("connector_id") or next(
            iter(self._own("connectors")), None
        )
        if connector is None:
            yield Part("connector", False, f"none of the name {self.name}; run engine install")
        else:
            yield from self._connector_status(connector, connect)
        if model is None:
            yield Part("model", False, "no search pipeline names one")
        elif model not in models:
            yield Part("model", False, f"the pipeline names {model}, which is not there")
        else:
            # A search may not see the latest state yet.
            state = self.engine.request("GET", _at("models", model))["model_state"]
            yield Part("model", state == "DEPLOYED", f"{model} is {state}")
        yield from self._pipeline_status(model)
        yield from self._default_status()
        if model and model in models:
            yield state_of("trial", lambda: self._trial(model))

    def _model_of(self, name: str) -> str | None:
        """The model that a search pipeline of ours names."""
        pipeline = self._pipeline(name)
        if not pipeline:
            return None
        rerank = pipeline.get("response_processors", [{}])[0].get("rerank", {})
        return str(rerank.get("ml_opensearch", {}).get("model_id"))

    def _connector_status(self, connector: str, connect: Connect) -> Iterator[Part]:
        content = self.engine.request("GET", _at("connectors", connector))
        action = content["actions"][0]
        url, model = action["url"].removesuffix(PATH), content["parameters"].get("model", "")
        yield Part("connector", True, f"{connector} to {url}, model {model}")
        missing = settings.missing(self.engine, url)
        changes = f"to be changed:\n{settings.shown(missing)}" if missing else ""
        yield Part("settings", not missing, changes or "let the engine reach it")

        def service() -> str:
            known, is_lexical = connect(url, model), '"mix": "lexical"' in action["request_body"]
            if is_lexical and not known.lexical:
                raise DataError(
                    f"{url} was started without --statistics, which the connector asks for"
                )
            more = "; install again to mix with it" if known.lexical and not is_lexical else ""
            return f"{known}{more}"

        yield state_of("service", service)

    def _pipeline_status(self, model: str | None) -> Iterator[Part]:
        for name, is_lenient in self.pipelines.items():
            pipeline = self._pipeline(name)
            if pipeline:
                same = self._model_of(name) == model
                rerank = pipeline["response_processors"][0]["rerank"]
                joined = rerank["context"]["document_fields"]
                fields = ", ".join(joined[1:] or joined)
                text = f"reranks by {fields}" if same else "names another model"
                yield Part(f"pipeline {name}", same, text)
            elif not is_lenient:
                yield Part(f"pipeline {name}", False, "there is none; run engine install")

    def _default_status(self) -> Iterator[Part]:
        for index, pipeline in self._defaults().items():
            if pipeline == self.name:
                text = (
                    f"{pipeline} makes every search without ext.rerank fail; run engine install "
                    f"--default-for {index}, or set {DEFAULT} to null"
                )
                yield Part(f"default of {index}", False, text)
            elif pipeline in self.pipelines:
                there = self._pipeline(pipeline) is not None
                text = "passes searches without ext.rerank unranked" if there else "is not there"
                yield Part(f"default of {index}", there, f"{pipeline} {text}")

    def remove(self) -> None:
        """Remove our parts, and nothing else."""
        self._check_plugins()
        for index, pipeline in self._defaults().items():
            if pipeline in self.pipelines:
                self.engine.request("PUT", f"/{index}/_settings", {DEFAULT: None})
                report(f"default of {index}", "removed")
        for name in self.pipelines:
            if self._pipeline(name):
                self.engine.request("DELETE", f"/_search/pipeline/{name}")
                report(f"pipeline {name}", "removed")
        self._remove_models()
        if self._others():
            report("settings", "left: other search pipelines of this command need them")
            return
        for line in settings.restore(self.engine):
            report("settings", line)

    def _remove_models(self, but: str | None = None) -> None:
        """Remove our models and connectors, except a model and its connector."""
        models = self._own("models")
        # Asked for by its id: a search may not show it yet.
        kept = self.engine.request("GET", _at("models", but))["connector_id"] if but else None
        for model in models:
            if model != but:
                self.engine.request("POST", f"{_at('models', model)}/_undeploy")
                self.engine.request("DELETE", _at("models", model))
                report("model", "removed" if but is None else "the old one removed")
        for connector in self._own("connectors"):
            if connector == kept:
                continue
            removed = "removed" if but is None else "the old one removed"
            try:
                self.engine.request("DELETE", _at("connectors", connector))
            except EngineError as error:
                # OpenSearch looks for the models of a connector by the parts of its id between
                # dashes, and finds those of others with an equal part.
                if error.status != 409:
                    raise
                removed = f"{connector} is left: to the engine, another one's model uses it"
            report("connector", removed)
        if but is None:
            for group in self._own("model_groups"):
                self.engine.request("DELETE", _at("model_groups", group))

    def _others(self) -> bool:
        """Whether there are connectors of ours for other search pipelines."""
        body = {"size": 1, "query": {"match_phrase_prefix": {"description": MARK}}}
        return bool(self.engine.request("POST", f"{ML}/connectors/_search", body)["hits"]["hits"])


def lacking(mapping: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Why searches in an index with this mapping give no texts of the fields; "" if they do."""
    source = mapping.get("_source", {})
    properties = mapping.get("properties", {})
    absent = [name for name in fields if not _has(properties, name)]
    if absent:
        return f"found no field {', '.join(absent)}, expected one of {', '.join(properties)}"
    if source.get("enabled") is False:
        return "found _source switched off, expected it on: the service would get empty texts"
    kept = source.get("includes") or ["*"]
    hidden = [
        name
        for name in fields
        if not any(fnmatchcase(name, pattern) for pattern in kept)
        or any(fnmatchcase(name, pattern) for pattern in source.get("excludes", ()))
    ]
    return f"found {', '.join(hidden)} left out of _source, expected them in it" if hidden else ""


def _has(properties: Mapping[str, Any], field: str) -> bool:
    first, dot, rest = field.partition(".")
    inner = properties.get(first, {}).get("properties", {})
    return field in properties or bool(dot and _has(inner, rest))


def _at(kind: str, name: str) -> str:
    return f"{ML}/{kind}/{name}"
