"""Posts as Twitter, Mastodon and Bluesky give them, and their records in our own form.

==========  ========================================================================================
Twitter     API 1.1: ``full_text``, ``extended_tweet``, ``retweeted_status``, ``statuses``; API 2:
            ``note_tweet``, ``referenced_tweets``, pages ``{"data": […], "includes": …}``, streams
            ``{"data": {…}, "matching_rules": …}``; notices; the archive's ``{"tweet": {…}}``
Mastodon    ``content`` in HTML, ``reblog``; ``outbox.json`` of an export (ActivityPub)
Bluesky     ``{"uri": …, "record": {…}}`` or ``value``; ``feed``, ``posts``, ``records``; Jetstream
==========  ========================================================================================
"""

from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

from tweetrerank.indexes.records import unescaped

Record = Mapping[str, Any]

_LISTS = (
    "data",
    "statuses",
    "posts",
    "feed",
    "records",
    "orderedItems",
)  # Posts of a page
_TEXTS = {"text", "full_text", "contents", "content", "record", "value"}
_NOTICES = {
    *(
        "delete",
        "disconnect",
        "limit",
        "scrub_geo",
        "status_withheld",
        "user_withheld",
        "warning",
    ),
    *("event", "friends", "friends_str", "control", "timestamp_ms", "created_at"),
    *(
        "errors",
        "meta",
        "title",
        "detail",
        "type",
        "status",
        "connection_issue",
        "includes",
    ),
}
"""Keys of objects without a post among those of Twitter's APIs."""

_TWITTER = {
    *(
        "id_str",
        "full_text",
        "truncated",
        "extended_tweet",
        "retweeted_status",
        "quoted_status",
    ),
    *(
        "entities",
        "note_tweet",
        "referenced_tweets",
        "edit_history_tweet_ids",
        "conversation_id",
    ),
    *(
        "in_reply_to_status_id",
        "in_reply_to_user_id",
        "public_metrics",
        "possibly_sensitive",
    ),
}
"""Keys by which a tweet is known, whose text Twitter has escaped."""

_MASTODON = {"reblog", "spoiler_text", "visibility", "attributedTo", "contentMap"}
_BLUESKY_POST = "app.bsky.feed.post"


def posts_in(value: Record) -> Iterator[Record | None]:
    """The posts in an object: itself, or those of a page or an envelope; None for each notice."""
    key = next((key for key in _LISTS if isinstance(value.get(key), list | dict)), None)
    if key is None or _TEXTS & value.keys():
        yield _unwrapped(value)
        return
    known = {tweet.get("id"): tweet for tweet in _records(value, "includes", "tweets")}
    for post in _records(value, key) if isinstance(value[key], list) else [value[key]]:
        if "data" in value and not post.keys() <= _NOTICES:
            references = _records(post, "referenced_tweets")
            whole = [{**known.get(each.get("id"), {}), **each} for each in references]
            post = {**post, "referenced_tweets": whole}
        yield _unwrapped(post)


def _unwrapped(value: Record) -> Record | None:
    """The post in an envelope, None for an object without one."""
    if value and value.keys() <= _NOTICES:
        return None
    if value.get("type") in ("Create", "Announce") and "object" in value:
        return _record(value, "object") or None  # A boost has the address of a post.
    if value.get("kind") in ("commit", "identity", "account"):
        commit = _record(value, "commit")
        uri = f"at://{value.get('did')}/{commit.get('collection')}/{commit.get('rkey')}"
        value = {"uri": uri, "record": commit.get("record")}
        return value if _record(value, "record").get("$type") == _BLUESKY_POST else None
    if not _TEXTS & value.keys():
        value = _record(value, "tweet") or _record(value, "post") or value
    is_other = _record(value, "value").get("$type", _BLUESKY_POST) != _BLUESKY_POST
    return None if is_other else value


def own_form(record: Record) -> Record:
    """A platform's record in our own form (``id``, ``text``, ``url``, ``title``); others as is."""
    if "uri" in record and (
        post := _record(record, "record") or _record(record, "value")
    ):
        return {
            "id": record["uri"],
            "text": post.get("text"),
            "url": _bluesky_url(post),
        }
    content = record.get("content")
    if isinstance(content, str) and (
        _MASTODON & record.keys() or content.startswith("<p")
    ):
        return _mastodon(record)
    return _twitter(record) if _TWITTER & record.keys() else record


def _twitter(record: Record) -> Record:
    original = _record(record, "retweeted_status")
    for each in _records(record, "referenced_tweets"):
        if each.get("type") == "retweeted":
            original = each
    text, url = _tweet_text(record), record.get("url") or _tweet_url(record)
    if isinstance(whole := _tweet_text(original), str) and isinstance(text, str):
        head, colon, _ = text.partition(": ")
        if text.startswith("RT @") and colon:
            text = f"{head}: {whole}"
    return {
        **{
            key: value
            for key, value in record.items()
            if key not in ("full_text", "contents")
        },
        "text": unescaped(text) if isinstance(text, str) else text,
        "url": url or _tweet_url(original),
    }


def _places(record: Record) -> list[Record]:
    """Where a tweet has its text and links, the whole ones first."""
    return [_record(record, "note_tweet"), _record(record, "extended_tweet"), record]


def _tweet_text(record: Record) -> Any:
    keys = ("full_text", "text", "contents")
    texts = (place.get(key) for place in _places(record) for key in keys)
    return next((text for text in texts if text is not None), None)


def _tweet_url(record: Record) -> str:
    """The first ``entities.urls[].expanded_url``, else its ``url``, else ""; not of a medium."""
    links = (
        link
        for place in _places(record)
        for link in _records(place, "entities", "urls")
    )
    urls = (
        link.get(k)
        for link in links
        for k in ("expanded_url", "url")
        if "media_key" not in link
    )
    return next((url for url in urls if isinstance(url, str) and url), "")


def _mastodon(record: Record) -> Record:
    post = _record(record, "reblog") or record
    html = _Html()
    html.feed(str(post.get("content") or ""))
    html.close()
    return {
        "id": record.get("id"),
        "title": post.get("spoiler_text") or post.get("summary"),
        "text": " ".join("".join(html.parts).split()),
        "url": next(iter(html.links), _record(post, "card").get("url")),
    }


def _bluesky_url(post: Record) -> Any:
    features = (
        each
        for facet in _records(post, "facets")
        for each in _records(facet, "features")
    )
    links = (
        each.get("uri") for each in features if str(each.get("$type")).endswith("#link")
    )
    external = _record(post, "embed", "external") or _record(
        post, "embed", "media", "external"
    )
    return next(links, external.get("uri"))


class _Html(HTMLParser):
    """The text of HTML, and its links but those of mentions and hashtags."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag in ("p", "br", "li", "div", "blockquote"):
            self.parts.append(" ")
        kinds = f"{known.get('class')} {known.get('rel')}".split()
        if (
            tag == "a"
            and known.get("href")
            and not {"mention", "hashtag", "tag"} & {*kinds}
        ):
            self.links.append(str(known["href"]))

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def _record(value: Record, *keys: str) -> Record:
    """The object at the end of a path of keys; an empty one where there is none."""
    for key in keys:
        found = value.get(key)
        value = found if isinstance(found, dict) else {}
    return value


def _records(value: Record, *keys: str) -> list[Record]:
    """The objects in the list at the end of a path of keys."""
    found = _record(value, *keys[:-1]).get(keys[-1])
    return (
        [each for each in found if isinstance(each, dict)]
        if isinstance(found, list)
        else []
    )
