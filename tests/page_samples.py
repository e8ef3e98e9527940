"""What the tests of HTML pages share: a strict reader of pages, and a text that would break out."""

from html.parser import HTMLParser

HOSTILE = """<script>alert("1")</script> & 'water' </p>\x00\u202e Egypt"""


class Balance(HTMLParser):
    """Every element that begins ends, in the right place."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(content: str) -> Balance:
    parser = Balance()
    parser.feed(content)
    parser.close()
    assert not parser.open
    return parser
