"""Convert posts of Twitter, Mastodon and Bluesky to our form.

========  ============================================================================
Twitter   API 1.1: ``full_text``, ``extended_tweet``, ``retweeted_status``,
          ``statuses``. API 2: ``note_tweet``, ``referenced_tweets``, pages
          ``{"data": […], "includes": …}``, streams
          ``{"data": {…}, "matching_rules": …}``. Notices. The archive's
          ``{"tweet": {…}}``.
Mastodon  ``content`` in HTML, ``reblog``, and ``outbox.json`` of an export
          (ActivityPub).
Bluesky   ``{"uri": …, "record": {…}}`` or ``value``, lists ``feed``, ``posts`` and
          ``records``, and Jetstream.
========  ============================================================================
"""

from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

from tweetrerank.indexes.records import unescaped

Record = Mapping[str, Any]

_LISTS = ("data", "statuses", "posts", "feed", "records", "orderedItems")
"""Keys under which a page has its posts."""

_TEXTS = {"text", "full_text", "contents", "content", "record", "value"}

_NOTICES = {
    "delete",
    "disconnect",
    "limit",
    "scrub_geo",
    "status_withheld",
    "user_withheld",
    "warning",
    "event",
    "friends",
    "friends_str",
    "control",
    "timestamp_ms",
    "created_at",
    "errors",
    "meta",
    "title",
    "detail",
    "type",
    "status",
    "connection_issue",
    "includes",
}
"""Keys of Twitter's notices. An object that has only these keys has no post."""

_TWITTER = {
    "id_str",
    "full_text",
    "truncated",
    "extended_tweet",
    "retweeted_status",
    "quoted_status",
    "entities",
    "note_tweet",
    "referenced_tweets",
    "edit_history_tweet_ids",
    "conversation_id",
    "in_reply_to_status_id",
    "in_reply_to_user_id",
    "public_metrics",
    "possibly_sensitive",
}
"""Keys by which a tweet is recognised. Twitter has escaped its text."""

_MASTODON = {"reblog", "spoiler_text", "visibility", "attributedTo", "contentMap"}
_BLUESKY_POST = "app.bsky.feed.post"


def posts_in(value: Record) -> Iterator[Record | None]:
    """Yield the post of an object, or the posts of a page. A notice yields None."""
    key = next((key for key in _LISTS if isinstance(value.get(key), list | dict)), None)
    if key is None or _TEXTS & value.keys():
        yield _unwrapped(value)
        return
    included = {
        tweet.get("id"): tweet for tweet in _records(value, "includes", "tweets")
    }
    posts = _records(value, key) if isinstance(value[key], list) else [value[key]]
    for post in posts:
        if "data" in value and not post.keys() <= _NOTICES:
            post = _with_references(post, included)
        yield _unwrapped(post)


def _with_references(post: Record, included: Mapping[Any, Record]) -> Record:
    """Return a tweet with the tweets that it refers to, as far as the page has them."""
    references = [
        {**included.get(reference.get("id"), {}), **reference}
        for reference in _records(post, "referenced_tweets")
    ]
    return {**post, "referenced_tweets": references}


def _unwrapped(value: Record) -> Record | None:
    """Return the post in an object, None if the object has none."""
    if _is_notice(value):
        return None
    if value.get("type") in ("Create", "Announce") and "object" in value:
        # The object of a boost is the address of a post.
        return _record(value, "object") or None
    if value.get("kind") in ("commit", "identity", "account"):
        return _jetstream_post(value)
    if not _TEXTS & value.keys():
        value = _record(value, "tweet") or _record(value, "post") or value
    if _record(value, "value").get("$type", _BLUESKY_POST) != _BLUESKY_POST:
        return None
    return value


def _is_notice(value: Record) -> bool:
    return bool(value) and value.keys() <= _NOTICES


def _jetstream_post(event: Record) -> Record | None:
    commit = _record(event, "commit")
    if _record(commit, "record").get("$type") != _BLUESKY_POST:
        return None
    uri = f"at://{event.get('did')}/{commit.get('collection')}/{commit.get('rkey')}"
    return {"uri": uri, "record": commit.get("record")}


def own_form(record: Record) -> Record:
    """Return a platform's record with our keys ``id``, ``text``, ``url`` and ``title``.

    A record that is not of a platform is returned as it is.
    """
    if "uri" in record:
        post = _record(record, "record") or _record(record, "value")
        if post:
            url = _bluesky_url(post)
            return {"id": record["uri"], "text": post.get("text"), "url": url}
    content = record.get("content")
    if isinstance(content, str) and (
        _MASTODON & record.keys() or content.startswith("<p")
    ):
        return _mastodon(record)
    return _twitter(record) if _TWITTER & record.keys() else record


def _twitter(record: Record) -> Record:
    original = _original(record)
    text = _tweet_text(record)
    whole_text = _tweet_text(original)
    if isinstance(text, str):
        author, colon, _ = text.partition(": ")
        is_retweet = text.startswith("RT @") and bool(colon)
        if is_retweet and isinstance(whole_text, str):
            text = f"{author}: {whole_text}"
        text = unescaped(text)
    fields = {
        key: value
        for key, value in record.items()
        if key not in ("full_text", "contents")
    }
    url = record.get("url") or _tweet_url(record) or _tweet_url(original)
    return {**fields, "text": text, "url": url}


def _original(record: Record) -> Record:
    """Return the tweet that a retweet repeats, or an empty object for other tweets."""
    original = _record(record, "retweeted_status")
    for reference in _records(record, "referenced_tweets"):
        if reference.get("type") == "retweeted":
            original = reference
    return original


def _sources(record: Record) -> list[Record]:
    """Return the objects that may have a tweet's text and links, complete first."""
    return [_record(record, "note_tweet"), _record(record, "extended_tweet"), record]


def _tweet_text(record: Record) -> Any:
    for source in _sources(record):
        for key in ("full_text", "text", "contents"):
            text = source.get(key)
            if text is not None:
                return text
    return None


def _tweet_url(record: Record) -> str:
    """Return the first link of a tweet, or "" without a link.

    The expanded form of a link is preferred to the short one. Links of media do not
    count.
    """
    for source in _sources(record):
        for link in _records(source, "entities", "urls"):
            if "media_key" in link:
                continue
            for key in ("expanded_url", "url"):
                url = link.get(key)
                if isinstance(url, str) and url:
                    return url
    return ""


def _mastodon(record: Record) -> Record:
    post = _record(record, "reblog") or record
    html = _Html()
    html.feed(str(post.get("content") or ""))
    html.close()
    card_url = _record(post, "card").get("url")
    return {
        "id": record.get("id"),
        "title": post.get("spoiler_text") or post.get("summary"),
        "text": " ".join("".join(html.texts).split()),
        "url": next(iter(html.links), card_url),
    }


def _bluesky_url(post: Record) -> Any:
    for facet in _records(post, "facets"):
        for feature in _records(facet, "features"):
            if str(feature.get("$type")).endswith("#link"):
                return feature.get("uri")
    external = _record(post, "embed", "external")
    if not external:
        external = _record(post, "embed", "media", "external")
    return external.get("uri")


class _Html(HTMLParser):
    """Collects the text of HTML, and its links except mentions and hashtags."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("p", "br", "li", "div", "blockquote"):
            self.texts.append(" ")
        attributes = dict(attrs)
        kinds = f"{attributes.get('class')} {attributes.get('rel')}".split()
        href = attributes.get("href")
        is_tag = not {"mention", "hashtag", "tag"}.isdisjoint(kinds)
        if tag == "a" and href and not is_tag:
            self.links.append(href)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _record(value: Record, *keys: str) -> Record:
    """Return the object that a path of keys leads to, or an empty object."""
    for key in keys:
        inner = value.get(key)
        value = inner if isinstance(inner, dict) else {}
    return value


def _records(value: Record, *keys: str) -> list[Record]:
    """Return the objects in the list that a path of keys leads to, if any."""
    items = _record(value, *keys[:-1]).get(keys[-1])
    if not isinstance(items, list):
        return []
    return [item for item in items if isinstance(item, dict)]
