"""Address of an index in a search engine, and its fields."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from indexes.errors import CollectionError


@dataclass(frozen=True)
class EngineAddress:
    """An index in OpenSearch or Elasticsearch.

    With a ``text_field`` it is an index that somebody has made for other purposes; without one, an
    index by :func:`indexes.engines.building.build`.
    """

    url: str  # Addresses of the cluster's nodes, separated by commas; one is enough
    index: str  # Name of an index, or of an alias
    auth: Path | None = None
    """File with user and password, see :class:`indexes.engines.client.Credentials`."""
    text_field: str | None = None  # Field of the posts' texts
    url_field: str | None = None  # Field of their links
    time_field: str | None = None
    """Field of their times, a date or a number that a topic's time limit bounds."""
    id_field: str | None = None  # Field of their ids; None takes ``_id``
    query: Path | str | None = None
    """File of a query in the engine's language, with ``{{query}}`` for the topic's text, or the id
    of a search template with the parameter ``query``; None matches the text field."""

    def __post_init__(self) -> None:
        for url in self.urls:
            check_url(url)
        foreign = ("url_field", "time_field", "id_field", "query")
        if self.text_field is None and (given := [n for n in foreign if getattr(self, n)]):
            raise CollectionError(
                f"{self}: found {', '.join(given)} without text_field, expected the field of the "
                "posts' texts, too"
            )

    @property
    def urls(self) -> list[str]:
        """The addresses of nodes."""
        return [url.strip().rstrip("/") for url in self.url.split(",")]

    @property
    def has_methods(self) -> bool:
        """Whether it is an index of ours, ranked by the methods of :mod:`indexes.methods`."""
        return self.text_field is None

    def __str__(self) -> str:
        return f"{self.urls[0]}/{self.index}"


def check_url(url: str) -> str:
    """The address of a node; raises CollectionError for another text, which is not repeated."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        # Reading the port checks it.
        _, secret = parts.port, parts.username or parts.password
    except ValueError:
        is_good, secret = False, None
    if secret or "@" in url:
        raise CollectionError(
            "found a user or password in the engine's address, expected it without: name them by "
            "TWEETRERANK_ENGINE_USER and TWEETRERANK_ENGINE_PASSWORD, or a file by `address.auth`"
        )
    if not is_good:
        raise CollectionError(
            f"found {url!r}, expected the address of a search engine, such as http://localhost:9200"
        )
    return url


def index_name(text: str) -> str:
    """A valid name of an index that resembles ``text``."""
    return "tweetrerank-" + re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")


def query_file(text: str, folder: Path = Path()) -> Path | str:
    """The file of a query, or the id of a search template; raises ValueError for a missing file."""
    if (folder / text).is_file():
        return folder / text
    if text.endswith(".json"):
        raise ValueError(f"found no file {text!r} of a query in {folder.resolve()}")
    return text
