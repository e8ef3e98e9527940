"""The service's page in headless Chromium."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
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
WIDE = (1440, 900)
NARROW = (390, 844)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium (Debian: apt install chromium)")
    # Root has no sandbox in a container.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


class Tab:
    """A tab at the page. Its problems, such as errors in scripts, fail the test."""

    def __init__(
        self,
        browser: Browser,
        served: ServedPage,
        size: tuple[int, int],
        **options: Any,
    ):
        self.served = served
        self.problems: list[str] = []
        self.requests: list[str] = []  # URLs
        self.ended: list[str] = []  # URLs
        width, height = size
        self.page: Page = browser.new_page(
            reduced_motion="reduce",  # Elements are in their last places.
            viewport={"width": width, "height": height},
            **options,
        )
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
            quiet += 1
            if len(self.ended) < len(self.requests):
                quiet = 0

    def order(self, side: str) -> list[str]:
        script = "items => items.map(item => item.post.doc_id)"
        return list(self.page.locator(f"#{side} .post").evaluate_all(script))

    @property
    def state(self) -> dict[str, str]:
        """The parameters in the address."""
        parameters = parse_qs(urlsplit(self.page.url).query)
        return {name: values[0] for name, values in parameters.items()}

    def sees(self, *selectors: str, hidden: Sequence[str] = ()) -> None:
        """Wait until elements are visible or hidden, in a page as wide as the tab."""
        for selector in selectors:
            expect(self.page.locator(selector).first).to_be_visible()
        for selector in hidden:
            expect(self.page.locator(selector).first).to_be_hidden()
        script = "document.documentElement.scrollWidth > innerWidth"
        assert not self.page.evaluate(script)


@pytest.fixture
def tabs(browser: Browser, served_page: ServedPage) -> Iterator[Any]:
    """A function that opens a tab in a new context.

    With parameters, it waits until the results are there.
    """
    opened: list[Tab] = []

    def open_tab(
        parameters: Any = None,
        size: Any = WIDE,
        served: Any = served_page,
        **options: Any,
    ) -> Any:
        tab = Tab(browser, served, size, **options)
        opened.append(tab)
        if parameters is not None:
            tab.page.goto(f"{served.address}/?{urlencode(parameters)}")
        if parameters:
            tab.wait()
        return tab, tab.page

    yield open_tab
    for tab in opened:
        known_urls = (tab.served.address, "data")
        outside = [url for url in tab.requests if not url.startswith(known_urls)]
        problems = tab.problems + outside
        tab.page.close()
        assert not problems


def expected_order(served: ServedPage, weight: float, **parameters: str) -> list[str]:
    """The ranking by the pipeline's own mixture."""
    result = served.page.search(search_request(served.page, parameters))
    topic_id = result.request.topic.query_id
    run = {topic_id: dict(result.model)}
    if weight != 1:
        first = {topic_id: dict(result.first)}
        run = interpolation.interpolate(first, run, weight)
    return ranked_ids(run[topic_id])


def ranked_ids(scores: Mapping[str, float]) -> list[str]:
    return [doc_id for doc_id, _ in ranked(scores)]


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
    parameters = {"q": "storm power cuts"}
    best = served_page.page.search(search_request(served_page.page, parameters))
    assert best.ranker.name == "fusion"
    assert tab.order("before") == ranked_ids(best.first)[:50]
    assert tab.order("after") == ranked_ids(best.model)[:50]
    assert page.title() == "storm power cuts – tweetrerank"
    marks = page.locator("#after .post .text mark.s4").all_inner_texts()
    assert {"storm", "power"} <= {text.lower() for text in marks}
    assert page.locator(".badge").count() == 0, "the query is no topic"
    defaults = {"method": "ql", "model": "fusion", "hits": "100"}
    assert tab.state == parameters | defaults
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
        badges = item.locator(".badge").all_inner_texts()
        doc_id = item.evaluate("item => item.post.doc_id")
        if doc_id in grades:
            assert badges == [names[grades[doc_id]]]
        else:
            assert badges == []
    relevant = sum(grades.get(doc_id, 0) > 0 for doc_id in tab.order("after")[:10])
    title = page.locator("#after-title")
    expect(title).to_contain_text(f"{relevant} of the first 10 relevant")


def test_figures_of_seen_judgments_are_not_shown(
    tabs: Any, served_page: ServedPage
) -> None:
    collection = served_page.page.collection
    seen = replace(models().default)
    metrics = {"trained_on": ["mb2011", collection.name]}
    vars(seen)["checkpoint"] = replace(seen.checkpoint, metrics=metrics)
    search_page = SearchPage(collection, lambda: {"mine": seen})
    with closing(search_page), listening(app_of(page=search_page)) as address:
        served = served_page._replace(address=address)
        tab, page = tabs(TOPIC | {"model": "mine"}, served=served)
        after = page.locator("#after-title")
        before = page.locator("#before-title")
        expect(after).to_contain_text("trained on these judgments")
        expect(before).to_contain_text("of the first 10 relevant")
        tab.wait()


def test_the_slider_reorders_without_the_server(
    tabs: Any, served_page: ServedPage
) -> None:
    tab, page = tabs(MIXED)
    before = tab.order("before")
    requests = list(tab.requests)
    slider = page.get_by_role("slider")
    tuned = float(slider.input_value())
    orders = []
    for weight in (0.0, 0.8, 1.0):
        slider.fill(str(weight))
        expect(page.locator("#weight-value")).to_have_text(f"{weight:g}")
        expect(page).to_have_url(re.compile(f"lambda={weight:g}$"))
        orders.append(tab.order("after"))
        assert orders[-1] == expected_order(served_page, weight, **MIXED)
        assert tab.order("before") == before
    assert orders[0] == before and len({tuple(order) for order in orders}) == 3
    first = page.locator("#after .post").first
    rank = before.index(orders[-1][0]) + 1
    assert rank > 1
    expect(first.locator(".move")).to_have_text(f"▲ {rank - 1}")
    name = f"Rank 1, up {rank - 1} from {rank} to 1: why?"
    expect(first.get_by_role("button")).to_have_accessible_name(name)
    page.get_by_role("button", name="tuned").click()
    expect(page).not_to_have_url(re.compile("lambda"))
    assert tab.order("after") == expected_order(served_page, tuned, **MIXED)
    new_requests = tab.requests[len(requests) :]
    assert not [url for url in new_requests if "/api/search" in url]


def test_the_best_ranker_in_plain_words(tabs: Any) -> None:
    tab, page = tabs(TOPIC)
    combined = "several searches combined"
    expect(page.locator("#after-title")).to_contain_text(combined)
    best = page.locator("#model option").first
    expect(best).to_have_text(f"best: {combined} (fusion)")
    tab.sees(hidden=["#weight", "#method"])
    expect(page.locator("#legend mark").last).to_have_text("same word")
    marks = page.locator("#after .post .text mark.s4").all_text_contents()
    assert {text.lower() for text in marks} == {"harlow", "bay", "marathon", "winner"}
    page.locator("#after .post").first.locator(".text").click()
    bars = page.locator("#why table.bars").first.locator("tr")
    expect(bars.first).to_be_visible()
    values = [float(text) for text in bars.locator("td.number").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    first, second = bars.locator("rect").all()[:2]
    ratio = width_of(first) / width_of(second)
    assert ratio == pytest.approx(values[0] / values[1], rel=0.01)
    expect(page.locator("#why code", has_text="signal:axiom")).to_be_hidden()
    page.get_by_text("with technical names").click()
    expect(page.locator("#why code", has_text="signal:axiom")).to_be_visible()


def width_of(rectangle: Any) -> float:
    """Width in percent."""
    return float(rectangle.get_attribute("width").rstrip("%"))


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
    button = page.get_by_role("button", name="1 relevant")
    expect(button).to_have_attribute("aria-pressed", "true")
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
    reasons = page.locator("#reasons").inner_text()
    assert other.locator("#reasons").inner_text() == reasons
    names = ("#method", "#hits", "#weight", "#q")
    values = [other.locator(name).input_value() for name in names]
    assert values == ["rm3", "50", "0.7", TOPIC["q"]]


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


def light(color: str) -> float:
    """Relative luminance of WCAG 2, from 0 to 1."""
    channels = re.findall(r"\d+", color)[:3]
    values = np.array(channels, dtype=np.float64) / 255
    linear = np.where(
        values <= 0.04045,
        values / 12.92,
        ((values + 0.055) / 1.055) ** 2.4,
    )
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(scheme: str, tabs: Any) -> None:
    """Texts, shades included, have WCAG's contrast of 4.5 with their background."""
    _, page = tabs(MIXED, color_scheme=scheme)
    page.locator("#after .post").nth(5).locator(".text").click()
    expect(page.locator("#why table.matches")).to_be_visible()

    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (light(ground) < 0.1) == (scheme == "dark")
    script = """items => items.map(item => {
        let behind = item;
        const ground = element => getComputedStyle(element).backgroundColor;
        while (behind.parentElement && ground(behind) === "rgba(0, 0, 0, 0)")
            behind = behind.parentElement;
        return [item.className, getComputedStyle(item).color, ground(behind)];
    })"""
    names = "mark, .text, .score, .move, .badge, .quiet, #status, h2, td, th, time"
    contrasts = {}
    for name, color, behind in page.locator(names).evaluate_all(script):
        low, high = sorted((light(color), light(behind)))
        contrasts[f"{name} {color} {behind}"] = (high + 0.05) / (low + 0.05)
    assert len(contrasts) > 8
    assert not {name: value for name, value in contrasts.items() if value < 4.5}


@pytest.mark.parametrize("model", ["fusion", "mp_hcnn"])
def test_texts_are_never_markup(model: str, tabs: Any) -> None:
    tab, page = tabs({"q": HOSTILE_QUERY, "model": model})
    for post in HOSTILE:
        row = tab.order("after").index(post["id"])
        item = page.locator("#after .post").nth(row)
        text = item.locator(".text").evaluate("text => text.textContent")
        assert text == visible(post["text"]), "as pipeline.explain prints it"
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
    # The browser reports responses that are errors.
    tab.problems = [problem for problem in tab.problems if "422" not in problem]
    page.goto(f"{tab.served.address}/?{urlencode(TOPIC | {'post': '17'})}")
    problem = "post 17 is not among the results"
    expect(page.get_by_role("alert")).to_contain_text(problem)


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
