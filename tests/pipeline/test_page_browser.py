"""The service's page in headless Chromium."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
from helpers.service_samples import (
    HOSTILE,
    HOSTILE_QUERY,
    ServedPage,
    app_of,
    listening,
    models,
)
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tweetrerank.pipeline.collections.trec import ranked, read_qrels
from tweetrerank.pipeline.ranking import interpolation
from tweetrerank.pipeline.service.page.page_routes import search_request
from tweetrerank.pipeline.service.page.search_page import SearchPage
from tweetrerank.rerankers.explanation import visible

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TOPIC = {"q": "Harlow Bay marathon winner", "query_id": "1"}
MIXED = {**TOPIC, "model": "mp_hcnn"}
WIDE, NARROW = (1440, 900), (390, 844)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium (Debian: apt install chromium)")
    # Root has no sandbox in a container.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        actual = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield actual
        actual.close()


class Tab:
    """A tab at the page; what goes wrong in it ends the test."""

    def __init__(
        self,
        browser: Browser,
        served: ServedPage,
        size: tuple[int, int],
        **options: Any,
    ):
        self.served, self.problems, self.requests = served, list[str](), list[str]()
        self.ended: list[str] = []  # URLs of requests
        options |= {"viewport": {"width": size[0], "height": size[1]}}
        # Nothing glides: places are those of the end.
        self.page: Page = browser.new_page(reduced_motion="reduce", **options)
        self.page.set_default_timeout(15_000)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfinished", lambda request: self.ended.append(request.url))
        self.page.on("requestfailed", lambda request: self.ended.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._hear)

    def _hear(self, message: Any) -> None:
        # Policy violations are errors, too.
        if message.type in ("error", "warning") and "401" not in message.text:
            self.problems.append(message.text)

    def wait(self) -> None:
        """Wait until the results and their shades are there."""
        expect(self.page.locator("body")).to_have_attribute("aria-busy", "false")
        quiet = 0
        while quiet < 3:  # One request for shades follows another.
            self.page.wait_for_timeout(20)
            quiet = quiet + 1 if len(self.ended) == len(self.requests) else 0

    def order(self, side: str) -> list[str]:
        script = "items => items.map(item => item.post.doc_id)"
        return list(self.page.locator(f"#{side} .post").evaluate_all(script))

    @property
    def state(self) -> dict[str, str]:
        return {
            name: values[0]
            for name, values in parse_qs(urlsplit(self.page.url).query).items()
        }

    def sees(self, *shown: str, hidden: Sequence[str] = ()) -> None:
        """Wait until elements are visible or hidden; the page is never wider than the tab."""
        for selector in shown:
            expect(self.page.locator(selector).first).to_be_visible()
        for selector in hidden:
            expect(self.page.locator(selector).first).to_be_hidden()
        assert not self.page.evaluate(
            "document.documentElement.scrollWidth > innerWidth"
        )


@pytest.fixture
def tabs(browser: Browser, served_page: ServedPage) -> Iterator[Any]:
    """Opens tabs, each with a context of its own; with parameters, until the results are there."""
    opened: list[Tab] = []

    def open_tab(
        asked: Any = None, size: Any = WIDE, served: Any = served_page, **how: Any
    ) -> Any:
        opened.append(tab := Tab(browser, served, size, **how))
        if asked is not None:
            tab.page.goto(f"{served.address}/?{urlencode(asked)}")
        if asked:
            tab.wait()
        return tab, tab.page

    yield open_tab
    for tab in opened:
        outside = [
            url
            for url in tab.requests
            if not url.startswith((tab.served.address, "data"))
        ]
        problems = [*tab.problems, *outside]
        tab.page.close()
        assert not problems


def expected_order(served: ServedPage, weight: float, **parameters: str) -> list[str]:
    """The ranking by the pipeline's own mixture."""
    result = served.page.search(search_request(served.page, parameters))
    key = result.request.topic.query_id
    first, neural = {key: dict(result.first)}, {key: dict(result.model)}
    mixed = neural if weight == 1 else interpolation.interpolate(first, neural, weight)
    return [doc_id for doc_id, _ in ranked(mixed[key])]


def test_type_a_query(tabs: Any, served_page: ServedPage) -> None:
    tab, page = tabs({})
    expect(page.get_by_text("beside the one of a learned model")).to_be_visible()
    expect(page.locator("#suggestions a")).to_have_count(20)
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("storm power cuts")
    page.keyboard.press("Enter")
    expect(page.locator("#after .post").first).to_be_visible()
    tab.wait()
    status = page.locator("#status").inner_text()
    assert re.fullmatch(r"\d+ posts, [\d.]+ s", status)
    assert "words, BM25 " in (page.locator("#told").get_attribute("title") or "")
    asked = {"q": "storm power cuts"}
    best = served_page.page.search(search_request(served_page.page, asked))
    assert best.ranker.name == "fusion"
    for side, scores in (("before", best.first), ("after", best.model)):
        assert tab.order(side) == [doc_id for doc_id, _ in ranked(scores)][:50]
    assert page.title() == "storm power cuts – tweetrerank"
    marks = page.locator("#after .post .text mark.s4").all_inner_texts()
    assert {"storm", "power"} <= {text.lower() for text in marks}
    assert page.locator(".badge").count() == 0, "the query is no topic"
    assert tab.state == {**asked, "method": "ql", "model": "fusion", "hits": "100"}
    page.get_by_label("Query").fill("zzzz")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Nothing found")
    tab.sees(hidden=["#results", "#legend", "#start"])


def test_a_topic_of_the_collection_shows_its_judgments(
    tabs: Any, served_page: ServedPage
) -> None:
    tab, page = tabs({})
    page.get_by_role("link", name="storm Vilma power cuts").click()
    expect(page.locator("#after .post").first).to_be_visible()
    assert tab.state["query_id"] == "2"
    grades = (served_page.page.collection.qrels or {})["2"]
    names = ("not relevant", "relevant", "highly relevant")
    for item in page.locator("#after .post").all()[:10]:
        grade = grades.get(item.evaluate("item => item.post.doc_id"))
        assert item.locator(".badge").all_inner_texts() == (
            [] if grade is None else [names[grade]]
        )
    relevant = sum(grades.get(doc_id, 0) > 0 for doc_id in tab.order("after")[:10])
    expect(page.locator("#after-title")).to_contain_text(
        f"{relevant} of the first 10 relevant"
    )


def test_figures_of_seen_judgments_are_not_shown(
    tabs: Any, served_page: ServedPage
) -> None:
    collection, seen = served_page.page.collection, replace(models().default)
    trained_on = {"trained_on": ["mb2011", collection.name]}
    vars(seen)["checkpoint"] = replace(seen.checkpoint, metrics=trained_on)
    page = SearchPage(collection, lambda: {"mine": seen})
    with closing(page), listening(app_of(page=page)) as address:
        served = served_page._replace(address=address)
        tab, shown = tabs(TOPIC | {"model": "mine"}, served=served)
        expect(shown.locator("#after-title")).to_contain_text(
            "trained on these judgments"
        )
        expect(shown.locator("#before-title")).to_contain_text(
            "of the first 10 relevant"
        )
        tab.wait()


def test_the_slider_reorders_without_the_server(
    tabs: Any, served_page: ServedPage
) -> None:
    tab, page = tabs(MIXED)
    before, searches = (
        tab.order("before"),
        sum("/api/search" in url for url in tab.requests),
    )
    slider, orders = page.get_by_role("slider"), []
    tuned = float(slider.input_value())
    for weight in (0.0, 0.8, 1.0):
        slider.fill(str(weight))
        expect(page.locator("#weight-value")).to_have_text(f"{weight:g}")
        expect(page).to_have_url(re.compile(f"lambda={weight:g}$"))
        orders.append(tab.order("after"))
        assert orders[-1] == expected_order(served_page, weight, **MIXED)
        assert tab.order("before") == before
    assert orders[0] == before and len({tuple(order) for order in orders}) == 3
    first, rank = page.locator("#after .post").first, before.index(orders[-1][0]) + 1
    assert rank > 1
    expect(first.locator(".move")).to_have_text(f"▲ {rank - 1}")
    name = f"Rank 1, up {rank - 1} from {rank} to 1: why?"
    expect(first.get_by_role("button")).to_have_accessible_name(name)
    page.get_by_role("button", name="tuned").click()
    expect(page).not_to_have_url(re.compile("lambda"))
    assert tab.order("after") == expected_order(served_page, tuned, **MIXED)
    assert sum("/api/search" in url for url in tab.requests) == searches


def test_the_best_ranker_in_plain_words(tabs: Any) -> None:
    tab, page = tabs(TOPIC)
    combined = "several searches combined"
    expect(page.locator("#after-title")).to_contain_text(combined)
    expect(page.locator("#model option").first).to_have_text(
        f"best: {combined} (fusion)"
    )
    tab.sees(hidden=["#weight", "#method"])
    expect(page.locator("#legend mark").last).to_have_text("same word")
    marks = page.locator("#after .post .text mark.s4").all_text_contents()
    assert {text.lower() for text in marks} == {"harlow", "bay", "marathon", "winner"}
    page.locator("#after .post").first.locator(".text").click()
    bars = page.locator("#why table.bars").first.locator("tr")
    expect(bars.first).to_be_visible()
    values = [float(text) for text in bars.locator("td.number").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    widths = [
        float(rect.get_attribute("width").rstrip("%"))
        for rect in bars.locator("rect").all()
    ]
    assert widths[0] / widths[1] == pytest.approx(values[0] / values[1], rel=0.01)
    expect(page.locator("#why code", has_text="signal:axiom")).to_be_hidden()
    page.get_by_text("with technical names").click()
    expect(page.locator("#why code", has_text="signal:axiom")).to_be_visible()


def test_grades_by_button_and_by_key(tabs: Any, served_page: ServedPage) -> None:
    grades = served_page.page.grades
    assert grades
    tab, page = tabs({"q": "raffle"})
    expect(page.get_by_text(f"Grades are saved in {grades.path}")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="1 relevant").click()
    badge = page.locator("#after .post").first.locator(".badge")
    expect(badge).to_have_text("relevant")
    expect(page.get_by_role("button", name="1 relevant")).to_have_attribute(
        "aria-pressed", "true"
    )
    page.keyboard.press("2")
    expect(badge).to_have_text("highly relevant")
    expect(page.locator("#after-title")).to_contain_text("1 of the first 10 relevant")
    [saved] = read_qrels(grades.path).values()
    assert saved == {tab.order("after")[0]: 2}
    page.keyboard.press("2")
    expect(badge).to_have_count(0)
    grades.path.unlink()
    grades.topics_path.unlink()
    grades.reload()


def test_a_shared_url_restores_everything(tabs: Any) -> None:
    first, page = tabs(MIXED)
    page.locator("#method").select_option("rm3")
    page.locator("#hits").select_option("50")
    expect(page.locator("#before-title")).to_contain_text("words and their company")
    first.wait()
    page.get_by_role("slider").fill("0.7")
    expect(page).to_have_url(re.compile("lambda=0.7"))
    page.locator("#before .post").nth(4).locator(".text").click()
    expect(page.locator("#why table.matches")).to_be_visible()
    expect(page.locator("#why table.stages")).to_contain_text("× 0.7")
    second, other = tabs()
    other.goto(page.url)
    expect(other.locator("#why table.matches")).to_be_visible()
    second.wait()
    assert second.state == first.state
    for side in ("before", "after"):
        assert second.order(side) == first.order(side)
    assert (
        other.locator("#reasons").inner_text() == page.locator("#reasons").inner_text()
    )
    shown = [
        other.locator(name).input_value()
        for name in ("#method", "#hits", "#weight", "#q")
    ]
    assert shown == ["rm3", "50", "0.7", TOPIC["q"]]


def test_the_keyboard_alone(tabs: Any) -> None:
    tab, page = tabs(MIXED)
    focused = "document.activeElement.closest('.post')"
    place = partial(page.evaluate, f"[{focused}.side, {focused}.post.doc_id]")
    after = tab.order("after")
    for key, rank in (("j", 0), ("j", 1), ("ArrowDown", 2), ("k", 1)):
        page.keyboard.press(key)
        assert place() == ["after", after[rank]]
    ring = page.locator(".post:has(.rank:focus-visible)")
    assert ring.evaluate("item => getComputedStyle(item).outlineStyle") == "solid"
    page.keyboard.press("ArrowLeft")
    assert place() == ["before", after[1]]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#why table.matches")).to_be_visible()
    page.keyboard.press("j")
    why = page.get_by_role("complementary")
    expect(why.get_by_role("heading").first).to_contain_text("Rank 3")
    words = why.locator("table.matches tbody th").all_inner_texts()
    assert words == ["harlow", "bay", "marathon", "winner"]
    assert tab.state["post"] == after[2]
    expect(page.locator(".post.open")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#why")).to_be_hidden()
    assert place() == ["after", after[2]]
    page.keyboard.press("/")
    expect(page.get_by_label("Query")).to_be_focused()
    page.keyboard.type("jk/")
    assert page.get_by_label("Query").input_value() == "jk/"


def test_a_phone(tabs: Any) -> None:
    tab, page = tabs(MIXED, NARROW, has_touch=True, is_mobile=True)
    tab.sees("#after .post", hidden=["#before .post"])
    page.locator("#tabs").get_by_role("button", name="Search").click()
    tab.sees("#before .post", hidden=["#after .post", "#model"])
    page.get_by_role("button", name="Options").click()
    tab.sees("#model")
    page.locator("#before .post").first.locator(".text").tap()
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    tab.sees("#why table.matches")
    page.go_back()
    tab.sees("#before .post", hidden=["#why"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(scheme: str, tabs: Any) -> None:
    """Texts, shades included, have WCAG's contrast of 4.5 with what is behind them."""
    _, page = tabs(MIXED, color_scheme=scheme)
    page.locator("#after .post").nth(5).locator(".text").click()
    expect(page.locator("#why table.matches")).to_be_visible()

    def light(color: str) -> float:
        parts = np.array([*map(int, re.findall(r"\d+", color)[:3])]) / 255
        linear = np.where(
            parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (light(ground) < 0.1) == (scheme == "dark")
    script = """items => items.map(item => {
        let behind = item;
        const ground = element => getComputedStyle(element).backgroundColor;
        while (behind.parentElement && ground(behind) === "rgba(0, 0, 0, 0)")
            behind = behind.parentElement;
        return [item.className, getComputedStyle(item).color, ground(behind)];
    })"""
    shown = page.locator(
        "mark, .text, .score, .move, .badge, .quiet, #status, h2, td, th, time"
    )
    contrasts = {}
    for name, color, behind in shown.evaluate_all(script):
        low, high = sorted((light(color), light(behind)))
        contrasts[f"{name} {color} {behind}"] = (high + 0.05) / (low + 0.05)
    assert len(contrasts) > 8
    assert not {name: value for name, value in contrasts.items() if value < 4.5}


@pytest.mark.parametrize("model", ["fusion", "mp_hcnn"])
def test_texts_are_never_markup(model: str, tabs: Any) -> None:
    tab, page = tabs({"q": HOSTILE_QUERY, "model": model})
    for post in HOSTILE:
        [place] = [
            n for n, doc_id in enumerate(tab.order("after")) if doc_id == post["id"]
        ]
        item = page.locator("#after .post").nth(place)
        # As pipeline.explain prints it.
        assert item.locator(".text").evaluate("text => text.textContent") == visible(
            post["text"]
        )
        links = item.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel])")
        if post["url"].startswith("http"):
            [(address, relation)] = links
            assert address.startswith("http://x.org/%22%3E%3Cscript")
            assert relation == "noopener noreferrer nofollow"
        else:
            assert not links
            expect(item.locator(".url")).to_have_text(post["url"])
        item.locator(".text").click()
        expect(page.locator("table.matches, table.bars").first).to_be_visible()
    assert page.title().startswith(HOSTILE_QUERY)
    assert page.get_by_label("Query").input_value() == HOSTILE_QUERY
    assert page.locator("main script, main img, main b:not(.rank b)").count() == 0
    assert page.evaluate("typeof hacked") == "undefined"


def test_errors_are_shown(tabs: Any) -> None:
    tab, page = tabs()
    page.goto(f"{tab.served.address}/?q=a&model=mp_hcnn&method=<b>x</b>")
    problem = "method: found '<b>x</b>', expected one of ql, bm25, rm3, axiom"
    expect(page.get_by_role("alert")).to_have_text(problem)
    # The browser itself reports answers that are errors.
    tab.problems = [problem for problem in tab.problems if "422" not in problem]
    page.goto(f"{tab.served.address}/?{urlencode(TOPIC | {'post': '17'})}")
    expect(page.get_by_role("alert")).to_contain_text(
        "post 17 is not among the results"
    )


def test_the_page_asks_for_a_key_once(tabs: Any, served_page: ServedPage) -> None:
    with listening(app_of(page=served_page.page, keys=["secret"])) as address:
        tab, page = tabs(served=served_page._replace(address=address))
        page.goto(f"{address}/?{urlencode(TOPIC)}")
        for key in ("wrong", "secret"):
            expect(page.get_by_role("dialog")).to_be_visible()
            expect(page.locator("#refused")).to_be_visible(visible=key == "secret")
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
        tab.sees("#after .post")
        page.reload()
        tab.sees("#after .post", hidden=["dialog"])
        tab.wait()
