"""Define the address of an index in a search engine, and check its parts."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tweetrerank.indexes.data_error import DataError

_FOREIGN = ("url_field", "time_field", "id_field", "query")
"""Fields of an address that require a ``text_field``."""


@dataclass(frozen=True)
class EngineAddress:
    """An index in OpenSearch or Elasticsearch.

    With a ``text_field``, it is an index that somebody has made for other purposes.
    Without one, it was built by :func:`tweetrerank.indexes.engines.filling.build`.
    Raises DataError if the fields do not fit together or a URL is malformed.
    """

    url: str  # Addresses of the cluster's nodes, separated by commas; one is enough
    index: str  # Name of an index, or of an alias
    auth: Path | None = None  # File of user and password (see `Credentials`)
    text_field: str | None = None  # Field of the posts' texts
    url_field: str | None = None  # Field of their links
    time_field: str | None = None
    """Field of their times, a date or a number. A topic's time limit applies to it."""
    id_field: str | None = None  # Field of their ids; None takes ``_id``
    query: Path | str | None = None
    """File of a query in the engine's language, or id of a search template.

    In a file, ``{{query}}`` stands for the topic's text. A template has the parameter
    ``query`` for it. Without either, the topic's text is matched with the text field.
    """
    signals: tuple[str, ...] = ()  # Further fields of its posts that are read

    def __post_init__(self) -> None:
        for url in self.urls:
            check_url(url)
        foreign = [name for name in _FOREIGN if getattr(self, name)]
        if foreign and self.text_field is None:
            raise DataError(
                f"{self}: found {', '.join(foreign)} without text_field, expected the "
                "field of the posts' texts, too"
            )

    @property
    def urls(self) -> list[str]:
        """The addresses of the cluster's nodes."""
        return [url.strip().rstrip("/") for url in self.url.split(",")]

    @property
    def has_methods(self) -> bool:
        """Whether this program built the index, so that its methods rank it."""
        return self.text_field is None

    def __str__(self) -> str:
        return f"{self.urls[0]}/{self.index}"


def check_url(url: str) -> None:
    """Raise DataError unless this is a node's address without user and password.

    The message never repeats a password.
    """
    if "@" in url:
        raise DataError(
            "found a user or password in the engine's address, expected it without: "
            "name them by TWEETRERANK_ENGINE_USER and TWEETRERANK_ENGINE_PASSWORD, or "
            "a file by `address.auth`"
        )
    if not _is_node(url):
        raise DataError(
            f"found {url!r}, expected the address of a search engine, such as "
            "http://localhost:9200"
        )


def _is_node(url: str) -> bool:
    try:
        address = urlsplit(url)
        port = address.port  # Reading the port checks it.
    except ValueError:
        return False
    return address.scheme in ("http", "https") and bool(address.hostname) and port != 0


def index_name(text: str) -> str:
    """Return a valid name of an index that resembles ``text``."""
    return "tweetrerank-" + re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")


def query_file(text: str, folder: Path = Path()) -> Path | str:
    """Return the file of a query, or the text itself as the id of a search template.

    Raises ValueError if the text ends in ``.json`` and there is no such file.
    """
    if (folder / text).is_file():
        return folder / text
    if text.endswith(".json"):
        raise ValueError(f"found no file {text!r} of a query in {folder.resolve()}")
    return text
