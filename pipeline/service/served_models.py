"""The served models by name: where they come from, their choice, and their reload."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.ranking.build import Source, best_source
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.scorer import Scorer, ServedModel
from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.pipeline.service.workers import Workers
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.reranker_error import RerankerError

DAMAGES = (RerankerError, DataError, OSError, ValueError)
UNCHANGED = "unchanged"

FindSource = Callable[[], Source]
Outcomes = dict[str, str | Exception]


class Models:
    """The served models by name.

    Args:
        names: names of shipped models, or paths of folders.
        cache: bytes in which all models together may keep encoded posts.
        processes: number of worker processes that score. With 0, or on a GPU, this
            process scores.
        collections: the best model of each is also served, under the collection's name.
        device: device on which networks run.
        challenger: name or folder of a model that is only compared with the first one.

    ``numbers`` has the names of all document numbers that at least one model reads.

    Raises:
        UsageError: two models have the same name.
        RerankerError: a model cannot be loaded or served.
        DataError: a collection has no model.
    """

    def __init__(
        self,
        names: Sequence[str],
        cache: int,
        processes: int = 0,
        collections: Sequence[Collection] = (),
        device: str = "cpu",
        challenger: str | None = None,
    ) -> None:
        self._find = _sources(names, collections)
        self._challenger = ""
        if challenger:
            self._challenger = f"challenger of {next(iter(self._find))}"
            folder = checkpoints.find(challenger)
            self._find[self._challenger] = partial(Source, folder)
        self._load: Callable[[dict[str, Source]], Scorer]
        cache_of_model = cache // len(self._find)
        if processes and device == "cpu":
            self._load = partial(Workers, cache=cache_of_model, processes=processes)
        else:
            self._load = partial(Scorer, cache=cache_of_model, device=device)
        self._all: dict[str, ServedModel] = {}
        self.numbers: tuple[str, ...] = ()
        for outcome in self._update().values():
            if isinstance(outcome, Exception):
                raise outcome

    @property
    def served(self) -> Mapping[str, ServedModel]:
        """The models that requests may choose, by name. The first is the default."""
        return {
            name: model for name, model in self._all.items() if name != self._challenger
        }

    @property
    def default(self) -> ServedModel:
        """The first model, which answers requests that need not choose one."""
        return next(iter(self._all.values()))

    @property
    def challenger(self) -> ServedModel | None:
        """The model that is compared with the default one, or None."""
        return self._all.get(self._challenger)

    def choose(self, name: str | None, takes_any: bool) -> ServedModel:
        """Return the model of this name.

        If only one model is served, it needs no name, and with ``takes_any`` it answers
        to every name. Raises RequestError if no model has this name, or if there are
        several and ``name`` is None.
        """
        served = self.served
        if name is not None and name in served:
            return served[name]
        if len(served) == 1 and (name is None or takes_any):
            return self.default
        names = ", ".join(served)
        if name is None:
            problem = f"model: found no model, expected one of {names}"
            raise RequestError("value", problem)
        problem = f"model: found the model {name[:100]!r}, expected one of {names}"
        raise RequestError("model", problem)

    def reload(self) -> None:
        """Load the models again if the files or the choice of one has changed.

        All new models replace the old ones at the same moment. If a new model is
        damaged, the problem is logged and the old model stays.
        """
        for name, outcome in self._update().items():
            if isinstance(outcome, Exception):
                LOG.error("%s: the old model stays: %s", name, outcome)
            else:
                LOG.info("%s: %s", name, outcome)

    def _update(self) -> Outcomes:
        """Load all models if one has changed.

        Returns for each name what has happened to its model, or the error.
        """
        outcomes: Outcomes = {}
        sources: dict[str, Source] = {}
        for name, find in self._find.items():
            try:
                source = find()
                outcomes[name] = self._change(name, source)
            except DAMAGES as error:
                outcomes[name] = error
            else:
                sources[name] = source
        if all(outcomes[name] == UNCHANGED for name in sources):
            return outcomes
        try:
            scorer = self._load(sources)
        except DAMAGES as error:
            return outcomes | dict.fromkeys(sources, error)
        return outcomes | self._replace_models(scorer)

    def _change(self, name: str, source: Source) -> str:
        """Return the outcome that a model will have if it can be loaded."""
        old = self._all.get(name)
        if old is not None and source.version == old.version:
            return UNCHANGED
        return f"loaded again from {source.folder}"

    def _replace_models(self, scorer: Scorer) -> Outcomes:
        """Replace the models by those that a scorer has loaded.

        A model that was not loaded stays as it was. Its error is returned by its name.
        """
        models = dict(self._all)
        errors: Outcomes = {}
        for name, loaded in scorer.loaded.items():
            if isinstance(loaded, Exception):
                errors[name] = loaded
            else:
                models[name] = replace(loaded, scorer=scorer)
        # This is a single assignment, so that no request sees half of the change.
        self._all = models
        numbers = {number for model in models.values() for number in model.numbers}
        self.numbers = tuple(sorted(numbers))
        return errors


def _sources(
    names: Sequence[str], collections: Sequence[Collection]
) -> dict[str, FindSource]:
    """Return a function that finds a model's current files, by its name in requests.

    Raises UsageError listing every problem with the names and folders.
    """
    sources: dict[str, FindSource] = {}
    problems: list[str] = []

    def add(option: str, name: str, find: FindSource) -> None:
        if name in sources:
            problem = f"found two models of the name {name}, expected one"
            problems.append(f"{option}: {problem}")
        sources[name] = find

    for name in names:
        try:
            folder = checkpoints.find(name)
        except RerankerError as error:
            problems.append(f"--checkpoint: {error}")
        else:
            name_in_requests = _name_in_requests(name, folder)
            add("--checkpoint", name_in_requests, partial(Source, folder))
    for collection in collections:
        add("--collection", collection.name, partial(best_source, collection))
    if problems:
        raise UsageError(problems)
    return sources


def _name_in_requests(name: str, folder: Path) -> str:
    """Return the name of a shipped model, or else the name of the folder."""
    is_shipped = folder.is_relative_to(checkpoints.SHIPPED)
    if is_shipped and name == folder.parent.name:
        return name
    return folder.resolve().name
