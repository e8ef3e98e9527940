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

from indexes.records import unescaped

Record = Mapping[str, Any]

_LISTS = ("data", "statuses", "posts", "feed", "records", "orderedItems")
"""Keys of the posts of a page."""

_TEXTS = {"text", "full_text", "contents", "content", "record", "value"}

_NOTICES = {
    *("delete", "disconnect", "limit", "scrub_geo", "status_withheld", "user_withheld", "warning"),
    *("event", "friends", "friends_str", "control", "timestamp_ms", "created_at"),
    *("errors", "meta", "title", "detail", "type", "status", "connection_issue", "includes"),
}
"""Keys of objects without a post among those of Twitter's APIs."""

_TWITTER = {
    *("id_str", "full_text", "truncated", "extended_tweet", "retweeted_status", "quoted_status"),
    *("entities", "note_tweet", "referenced_tweets", "edit_history_tweet_ids", "conversation_id"),
    *("in_reply_to_status_id", "in_reply_to_user_id", "public_metrics", "possibly_sensitive"),
}
"""Keys by which a tweet is known, whose text Twitter has escaped."""

_MASTODON = {"reblog", "spoiler_text", "visibility", "attributedTo", "contentMap"}
_BLUESKY_POST = "app.bsky.feed.post"


def posts_in(value: Record) -> Iterator[Record | None]:
    """The posts in an object: itself, or those of a page or an envelope; None for each notice."""
    page = next((value[key] for key in _LISTS if isinstance(value.get(key), list | dict)), None)
    if page is None or _TEXTS & value.keys():
        yield _unwrapped(value)
        return
    includes = value.get("includes")
    tweets = includes.get("tweets") if isinstance(includes, dict) else None
    known = {tweet.get("id"): tweet for tweet in _records(tweets)}
    for post in _records(page if isinstance(page, list) else [page]):
        if "data" in value and not post.keys() <= _NOTICES:
            references = _records(post.get("referenced_tweets"))
            whole = [{**known.get(each.get("id"), {}), **each} for each in references]
            post = {**post, "referenced_tweets": whole}
        yield _unwrapped(post)


def _unwrapped(value: Record) -> Record | None:
    """The post in an envelope, None for an object without one."""
    if value and value.keys() <= _NOTICES:
        return None
    if value.get("type") in ("Create", "Announce") and "object" in value:
        return _record(value.get("object")) or None  # A boost has the address of a post.
    if value.get("kind") in ("commit", "identity", "account"):
        commit = _record(value.get("commit"))
        uri = f"at://{value.get('did')}/{commit.get('collection')}/{commit.get('rkey')}"
        value = {"uri": uri, "record": commit.get("record")}
        return value if _kind(value["record"]) == _BLUESKY_POST else None
    if not _TEXTS & value.keys():
        value = _record(value.get("tweet")) or _record(value.get("post")) or value
    if _kind(value.get("value")) not in ("", _BLUESKY_POST):
        return None
    return value


def own_form(record: Record) -> Record:
    """A platform's record in our own form (``id``, ``text``, ``url``, ``title``); others as is."""
    if "uri" in record and (post := _record(record.get("record")) or _record(record.get("value"))):
        return {"id": record["uri"], "text": post.get("text"), "url": _bluesky_url(post)}
    content = record.get("content")
    if isinstance(content, str) and (_MASTODON & record.keys() or content.startswith("<p")):
        return _mastodon(record)
    if _TWITTER & record.keys():
        return _twitter(record)
    return record


def _twitter(record: Record) -> Record:
    original = _record(record.get("retweeted_status"))
    for each in _records(record.get("referenced_tweets")):
        if each.get("type") == "retweeted":
            original = each
    text, url = _tweet_text(record), record.get("url") or _tweet_url(record)
    if isinstance(whole := _tweet_text(original), str) and isinstance(text, str):
        head, colon, _ = text.partition(": ")
        if text.startswith("RT @") and colon:
            text = f"{head}: {whole}"
    return {
        **{key: value for key, value in record.items() if key not in ("full_text", "contents")},
        "text": unescaped(text) if isinstance(text, str) else text,
        "url": url or _tweet_url(original),
    }


def _places(record: Record) -> Iterator[Record]:
    """Where a tweet has its text and links, the whole ones first."""
    yield from (_record(record.get("note_tweet")), _record(record.get("extended_tweet")), record)


def _tweet_text(record: Record) -> Any:
    keys = ("full_text", "text", "contents")
    texts = (place.get(key) for place in _places(record) for key in keys)
    return next((text for text in texts if text is not None), None)


def _tweet_url(record: Record) -> str:
    """The first ``entities.urls[].expanded_url``, else its ``url``, else ""; not of a medium."""
    for place in _places(record):
        for link in _records(_record(place.get("entities")).get("urls")):
            for key in ("expanded_url", "url"):
                if isinstance(link.get(key), str) and link[key] and "media_key" not in link:
                    return str(link[key])
    return ""


def _mastodon(record: Record) -> Record:
    post = _record(record.get("reblog")) or record
    html = _Html()
    html.feed(str(post.get("content") or ""))
    html.close()
    card = _record(post.get("card")).get("url")
    return {
        "id": record.get("id"),
        "title": post.get("spoiler_text") or post.get("summary"),
        "text": " ".join("".join(html.parts).split()),
        "url": next(iter(html.links), card),
    }


def _bluesky_url(post: Record) -> Any:
    for facet in _records(post.get("facets")):
        for feature in _records(facet.get("features")):
            if _kind(feature).endswith("#link"):
                return feature.get("uri")
    embed = _record(post.get("embed"))
    external = _record(embed.get("external")) or _record(
        _record(embed.get("media")).get("external")
    )
    return external.get("uri")


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
        if tag == "a" and known.get("href") and not {"mention", "hashtag", "tag"} & {*kinds}:
            self.links.append(str(known["href"]))

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def _kind(value: Any) -> str:
    return str(_record(value).get("$type", ""))


def _record(value: Any) -> Record:
    return value if isinstance(value, dict) else {}


def _records(value: Any) -> list[Record]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
