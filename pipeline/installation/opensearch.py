"""Reranking inside OpenSearch: connector, model and search pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from indexes.engines.client import Engine, EngineError
from pipeline.command.errors import DataError
from pipeline.installation import settings
from pipeline.installation.parts import MARK, PATH, Part, Say, Service, Wish, fits

DEPLOYMENT = 60.0
"""Seconds that a model may take until it answers."""

READING = 30
"""Seconds that the engine waits for the service's scores."""

ML = "/_plugins/_ml"
DEFAULT = "index.search.default_pipeline"
TRIAL = {"query_text": "storm warning", "text_docs": ["stay inside", "gale warning"]}


class OpenSearch:
    """What belongs to a search pipeline in an OpenSearch.

    Args:
        engine: the connection.
        name: of the pipeline, the connector and the model.
    """

    fields = ("contents", "url")
    """Fields of an index by :mod:`pipeline.index`."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self.where = engine.address.urls[0]
        self.description = f"{MARK} for the search pipeline {name}; remove it by the same command."
        self.pipelines = {name: False, f"{name}-default": True}
        """Name -> whether it lets searches pass unranked that it cannot rerank."""

    def install(self, wish: Wish, agree: Callable[[str], None], say: Say) -> None:
        """Make what is missing, and change what differs.

        Args:
            wish: what is to be there.
            agree: asks whether settings may be changed, which it is told; raises DataError if not.
            say: tells what was done.

        Raises:
            DataError: something stands in the way.
            EngineError: the engine refuses.
        """
        self._check_plugins()
        index = wish.default_for or self._index_with(wish.fields)
        if wish.default_for:
            self._check_default(wish.default_for)
            self._check_fields(wish.default_for, wish.fields)
        for name in self.pipelines:
            self._own_pipeline(name)
        changes = settings.missing(self.engine, wish.service.url)
        if changes:
            agree(settings.shown(changes))
            settings.change(self.engine, changes)
        say("settings", "changed" if changes else "unchanged")
        model = self._install_model(wish, say)
        for name, is_lenient in self.pipelines.items():
            if not is_lenient or wish.default_for or self._own_pipeline(name):
                self._install_pipeline(name, is_lenient, model, wish.fields, say)
        self._remove_models(say, but=model)
        if wish.default_for:
            self._install_default(wish.default_for, say)
        say("trial", self._trial(model, index))

    # --- connector and model ----------------------------------------------------------------------

    def _connector(self, wish: Wish) -> dict[str, Any]:
        """The connector as it is to be."""
        service = wish.service
        more = ', "needs_text": true'
        more += ', "links": "around"' if len(wish.fields) > 1 else ""
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

    def _install_model(self, wish: Wish, say: Say) -> str:
        """The id of a deployed model with a connector as it is to be."""
        wanted = self._connector(wish)
        connectors = self._own("connectors")
        good = [
            c for c in connectors if fits(wanted, self.engine.request("GET", _at("connectors", c)))
        ]
        models = [
            model
            for model, one in self._own("models").items()
            if one.get("connector_id") in good and self._answers(model, wish.service)
        ]
        if models:
            say("connector", "unchanged")
            say("model", self._deployed(models[0]))
            return models[0]
        secret = {"credential": {"key": wish.service.key}}
        made = self.engine.request("POST", f"{ML}/connectors/_create", wanted | secret)
        say("connector", "made anew" if connectors else "made")
        body = {
            "name": self.name,
            "function_name": "remote",
            "description": self.description,
            "connector_id": made["connector_id"],
        }
        found = self.engine.request("POST", f"{ML}/models/_register", body)
        model = found.get("model_id") or self._registered(found["task_id"])
        self._deployed(model)
        say("model", "registered and deployed")
        return str(model)

    def _answers(self, model: str, service: Service) -> bool:
        """Whether a model's connector has the right key: this cannot be read, only tried."""
        try:
            self._deployed(model)
            self._predict(model)
        except EngineError as error:
            # The engine passes the service's status on.
            return error.status != 401
        return True

    def _registered(self, task: str) -> str:
        """The id of the model that a task registers; older versions do not tell it at once."""
        return str(self._awaited(_at("tasks", task), "state", "COMPLETED")["model_id"])

    def _deployed(self, model: str) -> str:
        """Deploy a model and wait until it is; what was done."""
        path = _at("models", model)
        state = self.engine.request("GET", path)["model_state"]
        if state == "DEPLOYED":
            return "unchanged"
        if state != "DEPLOYING":
            self.engine.request("POST", f"{path}/_deploy")
        self._awaited(path, "model_state", "DEPLOYED")
        return f"deployed (it was {state})"

    def _awaited(self, path: str, key: str, wanted: str) -> dict[str, Any]:
        """What is at a path, once its ``key`` says ``wanted``."""
        end = time.monotonic() + DEPLOYMENT
        while time.monotonic() < end:
            found: dict[str, Any] = self.engine.request("GET", path)
            if found.get(key) == wanted:
                return found
            if "FAILED" in str(found.get(key)):
                break
            time.sleep(0.2)
        raise DataError(
            f"{self.where}{path}: found {found.get(key)}, expected {wanted}: "
            f"{found.get('error', f'it did not come within {DEPLOYMENT:.0f} s')}"
        )

    def _own(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Id -> content of our connectors, models or model groups."""
        body = {"size": 100, "query": {"bool": {"filter": [{"term": {"name.keyword": self.name}}]}}}
        found = self.engine.request("POST", f"{ML}/{kind}/_search", body)["hits"]["hits"]
        return {
            one["_id"]: one["_source"]
            for one in found
            if str(one["_source"].get("description", "")).startswith(MARK)
        }

    def _check_plugins(self) -> None:
        """Raise DataError where OpenSearch lacks ML Commons."""
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

    def _own_pipeline(self, name: str) -> Mapping[str, Any] | None:
        """A search pipeline of ours; None without one.

        Raises:
            DataError: there is one of this name that is not ours.
        """
        try:
            found = self.engine.request("GET", f"/_search/pipeline/{name}").get(name)
        except EngineError as error:
            if error.status != 404:
                raise
            return None
        if found and not str(found.get("description", "")).startswith(MARK):
            raise DataError(
                f"{self.where}: found a search pipeline {name} that this command has not made; "
                "choose another name by --pipeline"
            )
        return found or None

    def _install_pipeline(
        self, name: str, is_lenient: bool, model: str, fields: Sequence[str], say: Say
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
        old = self._own_pipeline(name)
        if fits(wanted, old):
            say(f"pipeline {name}", "unchanged")
            return
        self.engine.request("PUT", f"/_search/pipeline/{name}", wanted)
        say(f"pipeline {name}", "changed" if old else "made")

    # --- indexes ----------------------------------------------------------------------------------

    def _defaults(self, index: str = "_all") -> dict[str, str | None]:
        """Index -> its default pipeline."""
        params = {"flat_settings": True}
        found = self.engine.request("GET", f"/{index}/_settings", params=params)
        return {name: one["settings"].get(DEFAULT) for name, one in found.items()}

    def _check_default(self, index: str) -> None:
        for name, pipeline in self._defaults(index).items():
            if pipeline not in (None, "_none", *self.pipelines):
                raise DataError(
                    f"{self.where}/{name}: found the default pipeline {pipeline}, which --default-"
                    f"for would replace; add the rerank processor of the pipeline {self.name} to it"
                )

    def _check_fields(self, index: str, fields: Sequence[str]) -> None:
        """Raise DataError where the service would get empty texts."""
        for name, one in self.engine.request("GET", f"/{index}/_mapping").items():
            if problem := lacking(one["mappings"], fields):
                raise DataError(f"{self.where}/{name}: {problem}")

    def _index_with(self, fields: Sequence[str]) -> str | None:
        """An index with all fields, to try the pipeline on; None without one."""
        try:
            found = self.engine.request("GET", "/_mapping")
        except EngineError:
            return None  # Who may not see all indexes may still install.
        names = [
            name
            for name, one in sorted(found.items())
            if not name.startswith(".") and not lacking(one["mappings"], fields)
        ]
        return names[0] if names else None

    def _install_default(self, index: str, say: Say) -> None:
        lenient = f"{self.name}-default"
        if set(self._defaults(index).values()) == {lenient}:
            say(f"default of {index}", "unchanged")
            return
        self.engine.request("PUT", f"/{index}/_settings", {DEFAULT: lenient})
        say(f"default of {index}", f"{lenient}: searches without ext.rerank pass unranked")

    # --- trial ------------------------------------------------------------------------------------

    def _predict(self, model: str) -> Any:
        return self.engine.request("POST", f"{ML}/_predict/text_similarity/{model}", TRIAL)

    def _trial(self, model: str, index: str | None) -> str:
        """Rerank two texts, and search in an index if there is one.

        Raises:
            DataError: it fails.
        """
        try:
            scores = [
                one["data"][0] for one in self._predict(model)["inference_results"][0]["output"]
            ]
            if index is None:
                return f"two texts have the scores {scores[0]:.4f} and {scores[1]:.4f}"
            body = {
                "size": 10,
                "query": {"match_all": {}},
                "ext": {"rerank": {"query_context": {"query_text": TRIAL["query_text"]}}},
            }
            params = {"search_pipeline": self.name}
            path = f"/{index}/_search"
            found = self.engine.request("POST", path, body, params)["hits"]["hits"]
            return f"a search in {index} reranks {len(found)} posts"
        except EngineError as error:
            if error.status == 401:
                raise DataError(
                    "the trial failed: the service does not accept the connector's key; run engine "
                    "install with --api-key-file"
                ) from None
            raise DataError(
                f"the trial failed: {error}; does the engine reach the service, and is that the "
                "address of --service as seen from the engine?"
            ) from None
        except (KeyError, IndexError, TypeError):
            raise DataError(f"the trial failed: found no scores of model {model}") from None

    # --- status and removal -----------------------------------------------------------------------

    def status(self, ask: Callable[[str, str], Service]) -> Iterator[Part]:
        """The state of each part.

        Args:
            ask: address and model -> service; raises DataError.
        """
        number = ".".join(map(str, self.engine.version))
        yield Part("engine", True, f"OpenSearch {number} at {self.where}")
        self._check_plugins()
        models, model = self._own("models"), self._model_of(self.name)
        connector = models.get(model or "", {}).get("connector_id") or next(
            iter(self._own("connectors")), None
        )
        if connector is None:
            yield Part("connector", False, f"none of the name {self.name}; run engine install")
        else:
            yield from self._connector_status(connector, ask)
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
        if model in models:
            try:
                yield Part("trial", True, self._trial(model, None))
            except DataError as error:
                yield Part("trial", False, str(error))

    def _model_of(self, pipeline: str) -> str | None:
        """The model that a search pipeline of ours names."""
        found = self._own_pipeline(pipeline)
        if not found:
            return None
        rerank = found.get("response_processors", [{}])[0].get("rerank", {})
        return str(rerank.get("ml_opensearch", {}).get("model_id"))

    def _connector_status(
        self, connector: str, ask: Callable[[str, str], Service]
    ) -> Iterator[Part]:
        found = self.engine.request("GET", _at("connectors", connector))
        action = found["actions"][0]
        url, model = action["url"].removesuffix(PATH), found["parameters"].get("model", "")
        yield Part("connector", True, f"{connector} to {url}, model {model}")
        missing = settings.missing(self.engine, url)
        text = (
            f"to be changed:\n{settings.shown(missing)}" if missing else "let the engine reach it"
        )
        yield Part("settings", not missing, text)
        try:
            service = ask(url, model)
        except DataError as error:
            yield Part("service", False, str(error))
            return
        asked = '"mix": "lexical"' in action["request_body"]
        if asked and not service.lexical:
            text = f"{url} was started without --statistics, which the connector asks for"
            yield Part("service", False, text)
        else:
            more = "; install again to mix with it" if service.lexical and not asked else ""
            yield Part("service", True, f"{service}{more}")

    def _pipeline_status(self, model: str | None) -> Iterator[Part]:
        for name, is_lenient in self.pipelines.items():
            found = self._own_pipeline(name)
            if found:
                same = self._model_of(name) == model
                rerank = found["response_processors"][0]["rerank"]
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
                there = self._own_pipeline(pipeline) is not None
                text = "passes searches without ext.rerank unranked" if there else "is not there"
                yield Part(f"default of {index}", there, f"{pipeline} {text}")

    def remove(self, say: Say) -> None:
        """Remove what was made, and nothing else."""
        self._check_plugins()
        for index, pipeline in self._defaults().items():
            if pipeline in self.pipelines:
                self.engine.request("PUT", f"/{index}/_settings", {DEFAULT: None})
                say(f"default of {index}", "removed")
        for name in self.pipelines:
            if self._own_pipeline(name):
                self.engine.request("DELETE", f"/_search/pipeline/{name}")
                say(f"pipeline {name}", "removed")
        self._remove_models(say)
        if self._others():
            say("settings", "left: other search pipelines of this command need them")
            return
        for line in settings.restore(self.engine):
            say("settings", line)

    def _remove_models(self, say: Say, but: str | None = None) -> None:
        """Remove our models and connectors, except a model and its connector."""
        models = self._own("models")
        # Asked for by its id: a search may not show it yet.
        kept = self.engine.request("GET", _at("models", but))["connector_id"] if but else None
        for model in models:
            if model != but:
                self.engine.request("POST", f"{_at('models', model)}/_undeploy")
                self.engine.request("DELETE", _at("models", model))
                say("model", "removed" if but is None else "the old one removed")
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
            say("connector", removed)
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
