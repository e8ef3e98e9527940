"""What both engines' installations share: the service, what is wanted, how parts are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.command.errors import DataError

MARK = "Made by tweetrerank engine install"
"""Beginning of the descriptions of what is ours."""

NO_KEY = "none"
"""In place of a key that the service does not ask for: the engines want one."""

PATH = "/v2/rerank"
"""Of the service's format that both engines speak."""

Say = Callable[[str, str], None]
"""Tells what has become of a part: its name, and what was done."""


@dataclass(frozen=True)
class Service:
    """A service as it answers.

    Attributes:
        url: without a slash at its end.
        model: served under this name.
        weight: the model's λ.
        lexical: whether it computes the first stage's scores.
        key: that it asks for, or :data:`NO_KEY`.
    """

    url: str
    model: str
    weight: float
    lexical: bool
    key: str = NO_KEY

    @classmethod
    def ask(cls, url: str, model: str | None, key: str | None) -> Service:
        """Find out what a service serves.

        Args:
            url: of the service.
            model: one of its models; None is the first.
            key: that it asks for.

        Raises:
            DataError: it does not answer, or does not serve the model, or it is another server.
        """
        import requests

        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            answer = requests.get(f"{url}/v1/models", headers=headers, timeout=10)
            served = {one["id"]: one for one in answer.json()["data"]} if answer.ok else {}
            found = served[model or next(iter(served))] if served else None
            ours = found and (float(found["weight"]), bool(found["lexical"]))
        except requests.RequestException as error:
            raise DataError(
                f"{url}: the service does not answer ({type(error).__name__}); start it with "
                "`tweetrerank serve`, and name the address that the engine reaches it at"
            ) from None
        except KeyError as error:
            if error.args == (model,):
                raise DataError(
                    f"{url}: found the models {', '.join(served)}, expected {model}; start the "
                    f"service with --checkpoint {model}"
                ) from None
            ours = None
        except (ValueError, TypeError):
            ours = None
        if answer.status_code == 401:
            raise DataError(
                f"{url}: the service does not accept the key, or got none; name the file that it "
                "was started with by --api-key-file"
            )
        if not ours:
            raise DataError(
                f"{url}: found no service of tweetrerank there (GET /v1/models gives "
                f"{answer.status_code}); start one with `tweetrerank serve`"
            )
        name = model or next(iter(served))
        return cls(url, name, *ours, key=key or NO_KEY)

    def __str__(self) -> str:
        mix = f"with the first stage, λ {self.weight:g}" if self.lexical else "neural score alone"
        return f"{self.url} serves {self.model} ({mix})"


@dataclass(frozen=True)
class Wish:
    """What is to be installed.

    Attributes:
        name: of the search pipeline, and of all that belongs to it.
        service: that reranks.
        fields: of the texts, and perhaps of their links.
        default_for: index whose searches all go through the pipeline.
    """

    name: str
    service: Service
    fields: Sequence[str]
    default_for: str | None = None


class Part(NamedTuple):
    """State of a part: its name, whether it works, and what there is to say."""

    name: str
    works: bool
    text: str


def report(parts: Iterable[Part]) -> None:
    """Print parts; raise DataError if one does not work."""
    broken = 0
    for part in parts:
        print(f"{'ok' if part.works else 'BROKEN':<7} {part.name:<17} {part.text}", flush=True)
        broken += not part.works
    if broken:
        raise DataError(
            f"found {broken} broken; `tweetrerank engine install` mends what is its own"
        )


def fits(wanted: Any, found: Any) -> bool:
    """Whether what was found has all that is wanted; engines add fields, and write 1 as "1"."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            fits(value, found.get(key)) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(wanted) == len(found) and all(map(fits, wanted, found))
        )
    return spelled(wanted) == spelled(found)


def spelled(value: Any) -> Any:
    """A value as engines give settings back: as texts."""
    if isinstance(value, list | tuple):
        return [spelled(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
