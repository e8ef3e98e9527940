"""Shared by both engines' installers: the service, the installation, reports of its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from indexes.engines.client import Engine, EngineError
from pipeline.command.errors import DataError

MARK = "Made by tweetrerank engine install"  # Beginning of the descriptions of our parts
NO_KEY = "none"  # In place of a key that the service does not need: the engines want one
PATH = "/v2/rerank"  # Of the service's format that both engines speak


@dataclass(frozen=True)
class RerankService:
    """A running service.

    Attributes:
        url: without a slash at its end.
        model: served under this name.
        weight: the model's λ.
        lexical: whether it computes the first stage's scores, to mix them with the model's.
        reads_order: whether the model reads the order in which documents come.
        key: that it needs, or :data:`NO_KEY`.
    """

    url: str
    model: str
    weight: float
    lexical: bool
    reads_order: bool = False
    key: str = NO_KEY

    @classmethod
    def connect(cls, url: str, model: str | None, key: str | None) -> RerankService:
        """The service at an address, and its model (default: the first).

        Raises DataError if it does not answer, does not serve the model, or is another server.
        """
        import requests

        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            response = requests.get(f"{url}/v1/models", headers=headers, timeout=10)
        except requests.RequestException as error:
            raise DataError(
                f"{url}: the service does not answer ({type(error).__name__}); start it with "
                "`tweetrerank serve`, and name the address that the engine reaches it at"
            ) from None
        if response.status_code == 401:
            raise DataError(
                f"{url}: the service does not accept the key, or got none; name the file that it "
                "was started with by --api-key-file"
            )
        try:
            served = {
                entry["id"]: (
                    float(entry["weight"]),
                    bool(entry["lexical"]),
                    bool(entry.get("reads_order")),
                )
                for entry in response.json()["data"]
            }
            name = model or next(iter(served))
        except (ValueError, TypeError, KeyError, StopIteration):
            raise DataError(
                f"{url}: found no service of tweetrerank there (GET /v1/models gives "
                f"{response.status_code}); start one with `tweetrerank serve`"
            ) from None
        if name not in served:
            raise DataError(
                f"{url}: found the models {', '.join(served)}, expected {name}; start the service "
                f"with --checkpoint {name}"
            )
        return cls(url, name, *served[name], key=key or NO_KEY)

    def __str__(self) -> str:
        return f"{self.url} serves {self.model} ({self._ranking})"

    @property
    def reads_first_stage(self) -> bool:
        """Whether its ranking starts from that of a first stage."""
        return self.reads_order or self.lexical

    @property
    def _ranking(self) -> str:
        """What a ranking is made of."""
        if self.reads_order:
            return "texts, and the order of the engine's hits"
        return f"with the first stage, λ {self.weight:g}" if self.lexical else "texts alone"


@dataclass(frozen=True)
class Installation:
    """Options of an installation: the fields of texts, and perhaps of their links.

    ``default_for``: index whose searches all go through the pipeline.
    """

    service: RerankService
    fields: Sequence[str]
    default_for: str | None = None


class Part(NamedTuple):
    """State of a part: its name, whether it works, and details."""

    name: str
    works: bool
    text: str


Connect = Callable[[str, str], RerankService]
"""Address and model -> the service there; raises DataError."""


class Installer(ABC):
    """Installs reranking in an engine, by parts of this name."""

    product: ClassVar[str]
    """Name of the engine."""
    fields: ClassVar[Sequence[str]]
    """Default fields of an installation."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name, self.where = engine, name, engine.address.urls[0]

    @property
    def version(self) -> str:
        """The engine's version."""
        return ".".join(map(str, self.engine.version))

    @abstractmethod
    def install(self, installation: Installation, confirm: Callable[[str], None]) -> None:
        """Make missing parts, change those that differ, and report each.

        ``confirm`` is called with changes of cluster settings; it raises DataError if declined. So
        does an index, a pipeline or an engine's version that prevents an installation.
        """

    @abstractmethod
    def parts(self, connect: Connect) -> Iterator[Part]:
        """The state of each part."""

    @abstractmethod
    def remove(self) -> None:
        """Remove our parts, and nothing else."""

    def status(self, connect: Connect) -> None:
        """Print the state of each part; raise DataError if one does not work."""
        broken = 0
        engine = Part("engine", True, f"{self.product} {self.version} at {self.where}")
        for part in (engine, *self.parts(connect)):
            print(f"{'ok' if part.works else 'BROKEN':<7} {part.name:<17} {part.text}", flush=True)
            broken += not part.works
        if broken:
            raise DataError(
                f"found {broken} broken; `tweetrerank engine install` mends what is its own"
            )

    def of_others(self, kind: str) -> DataError:
        """The error for a part of our name that this command has not made."""
        return DataError(
            f"{self.where}: found {kind} {self.name} that this command has not made; choose "
            "another name by --pipeline"
        )

    def failed(self, error: EngineError) -> DataError:
        """The error of a trial."""
        if error.status == 401:
            return DataError(
                "the trial failed: the service does not accept the connector's key; run engine "
                "install with --api-key-file"
            )
        return DataError(
            f"the trial failed: {error}; does the engine reach the service, and is that the "
            "address of --service as seen from the engine?"
        )


def state_of(name: str, text: Callable[[], str]) -> Part:
    """A part that works if its text can be had; else the error is its text."""
    try:
        return Part(name, True, text())
    except DataError as error:
        return Part(name, False, str(error))


def report(part: str, text: str) -> None:
    """Print the change of a part."""
    print(f"{part:<25} {text}", flush=True)


def fits(wanted: Any, present: Any) -> bool:
    """Whether all that is wanted is present; engines add fields, and write 1 as "1"."""
    if isinstance(wanted, Mapping):
        return isinstance(present, Mapping) and all(
            fits(value, present.get(key)) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        is_list = isinstance(present, list) and len(wanted) == len(present)
        return is_list and all(map(fits, wanted, present))
    return bool(spelled(wanted) == spelled(present))


def spelled(value: Any) -> Any:
    """A value as engines give settings back: as texts."""
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def starts_with_mark(text: Any) -> bool:
    """Whether a description is that of a part of ours."""
    return str(text or "").startswith(MARK)
