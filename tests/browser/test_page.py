"""The page in a real browser, from disk: it draws itself, its controls work, nothing leaves it, and names stay text.

Needs playwright and a chromium (`apt-get install chromium`, or CHROMIUM=path); skipped, with the reason, without them.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from program import run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium found: apt-get install chromium, or set CHROMIUM")

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CLASSES = ("<img src=x onerror=alert(1)>", "<script>alert(2)<", "quotes \"'` & </script ünï 漢字".replace("/", "∕"))
FILE = '<svg onload=alert(3)>"&.png'


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison on a data set whose every name is hostile."""
    root = tmp_path_factory.mktemp("browser")
    rng = np.random.default_rng(0)
    data = root / "data <b>&\"' ü"
    for part, count in (("train", 24), ("test", 8)):
        for number, name in enumerate(CLASSES):
            (data / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, (16, 16, 3), dtype=np.uint8)
                pixels[:, :, number] += rng.integers(0, 120, dtype=np.uint8)
                Image.fromarray(pixels).save(data / part / name / f"{i}{FILE}")
    flags = ("--width", 4, "--batch-size", 16, "--epochs", 5, "--lr", 0.02, "--workers", 0, "--threads", 1)
    methods = "mixtrain-cutmix,random-backprop[keep=0.4]"
    out = root / "out <i>&\"'"
    done = run("compare", "--data", data, *flags, "--seeds", 2, "--methods", methods, "--out", out)
    assert done.returncode == 0, done.stderr
    done = run("report", out)
    assert done.returncode == 0, done.stderr
    return out / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=list(FLAGS))
        yield browser
        browser.close()


class Watched:
    """A page and what it did that it should not."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.requests: list[str] = []
        page = self.page
        page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("figure svg[role=img]")


@pytest.fixture
def watched(browser: Any, page_file: Path) -> Iterator[Watched]:
    watched = Watched(browser, page_file, color_scheme="light")
    yield watched
    watched.page.wait_for_timeout(50)  # what a test set off has been drawn
    assert watched.wrong == []
    outside = [url for url in watched.requests if not url.startswith("data:")]
    assert outside == [page_file.as_uri()]
    watched.context.close()


@pytest.fixture
def page(watched: Watched) -> Any:
    return watched.page


def label(page: Any, title: str) -> str:
    """What a screen reader says of the chart with that title."""
    svg = page.locator("figure", has=page.get_by_role("heading", name=title, exact=True)).locator("svg[role=img]").first
    return str(svg.get_attribute("aria-label"))


def test_every_part_is_there(page: Any) -> None:
    parts = ["Verdict", "Is it worth it?", "Curves", "Overhead", "Inside", "Use", "Examples", "Settings"]
    assert page.locator("h2").all_inner_texts() == parts
    assert page.locator("nav a").all_inner_texts() == parts
    for title in (
        "Accuracy against what it costs",
        "Learning curves",
        "Share of the examples mixed, by region",
        "Thresholds",
        "Losses of an epoch",
        "Its loss over the epochs",
    ):
        assert len(label(page, title)) > 30
    assert page.locator(".gallery li").count() >= 4
    assert page.locator(".verdict").count() == 2
    assert "leantrain compare" in page.locator("pre").inner_text()


def test_hostile_names_are_text(page: Any, page_file: Path) -> None:
    options = page.get_by_label("class", exact=True).locator("option").all_inner_texts()
    assert set(CLASSES) <= set(options)
    assert FILE in page.locator(".who dl").inner_text()
    assert "data <b>&\"' ü" in page.locator(".facts").inner_text()
    assert "out <i>&\"'" in page.locator(".pairs").last.inner_text()
    assert page.evaluate("document.scripts.length") == 2
    assert page.locator("b, i, img, main script, svg[onload]").count() == 0


def test_the_policy_stops_what_the_page_must_not_do(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    tried = "fetch('http://127.0.0.1:9/').then(() => 'went out', () => 'stopped')"
    assert watched.page.evaluate(tried) == "stopped"
    assert any("Content Security Policy" in text for text in watched.wrong)
    watched.context.close()


def test_the_table_sorts_by_click_and_by_keyboard(page: Any) -> None:
    table = page.locator("table.results")
    before = table.locator("tbody th").all_inner_texts()
    assert before[0] == "plain"

    def column() -> list[float]:
        cells = table.locator("tbody td:nth-child(2)").all_inner_texts()
        return [float(cell.split("±")[0]) for cell in cells]

    heading = table.locator("thead th", has_text="accuracy").first
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column())
    assert "lowest first" in page.locator("#said").inner_text()
    page.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") is None
    assert table.locator("tbody th").all_inner_texts() == before
    method = table.locator("thead th").first
    method.locator("button").click()
    names = table.locator("tbody th").all_inner_texts()
    assert names[0].startswith("mixtrain")
    overhead = table.locator("thead th", has_text="overhead")
    overhead.locator("button").click()
    assert table.locator("tbody td:nth-child(9)").all_inner_texts()[-4:] == ["—"] * 4  # what is not known comes last
    overhead.locator("button").click()
    assert table.locator("tbody td:nth-child(9)").all_inner_texts()[-4:] == ["—"] * 4


def test_the_slider_goes_through_the_epochs(page: Any) -> None:
    slider = page.get_by_role("slider", name="epoch")
    slider.focus()
    page.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext") == "epoch 1"
    first = label(page, "Losses of an epoch")
    assert re.match(r"Losses of epoch 1: \d+ unmixed, recognised, \d+ unmixed, not recognised, 0 mixed;", first)
    assert sum(map(int, re.findall(r"(\d+) (?:unmixed|mixed)", first))) == 72
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "epoch 3"
    assert label(page, "Losses of an epoch").startswith("Losses of epoch 3:")
    assert page.locator(".losses output").inner_text().startswith("3 of 5")
    assert page.locator(".losses svg rect").count() > 3
    page.keyboard.press("End")
    assert "judged by no thresholds" in page.locator(".losses output").inner_text()


def test_another_seed_s_run_can_be_chosen(page: Any) -> None:
    before = label(page, "Thresholds")
    page.get_by_label("run", exact=True).select_option(label="mixtrain-cutmix, seed 1")
    page.wait_for_selector(".losses svg[role=img]")
    assert label(page, "Thresholds") != before
    assert page.locator(".losses").count() == 1
    assert page.locator(".gallery li").count() >= 4


def test_an_example_is_found_by_index_and_by_class(page: Any) -> None:
    known = [int(b.get_attribute("data-index")) for b in page.locator(".thumbs button").all()]
    index = page.get_by_label("index", exact=True)
    index.fill(str(known[3]))
    index.press("Enter")
    assert page.locator(".who dd").first.inner_text() == str(known[3])
    assert label(page, "Its loss over the epochs").startswith(f"Loss of example {known[3]}:")
    assert page.locator(f".thumbs button[data-index='{known[3]}']").get_attribute("aria-pressed") == "true"
    told = page.locator(".told").inner_text()
    assert "plain: trained whole 5×" in told
    assert "random-backprop" in told
    page.get_by_label("class", exact=True).select_option(label=CLASSES[1])
    shown = page.locator(".thumbs button").all()
    assert 0 < len(shown) < len(known)
    assert all(CLASSES[1] in str(button.get_attribute("aria-label")) for button in shown)
    assert page.locator(".who dd").nth(1).inner_text() == CLASSES[1]
    shown[1].focus()
    page.keyboard.press("Enter")
    assert page.locator(".who dd").first.inner_text() == shown[1].get_attribute("data-index")
    index.fill("100000")
    index.press("Enter")
    assert "There is no such example; indices go from 0 to 71." in page.locator(".explorer").inner_text()


def test_a_used_example_can_be_looked_up(page: Any) -> None:
    button = page.locator(".use .strip button").last
    wanted = re.match(r"example (\d+)", str(button.get_attribute("aria-label")))
    assert wanted
    button.click()
    assert page.locator(".who dd").first.inner_text() == wanted.group(1)
    assert page.evaluate("document.activeElement.className") == "one"


def test_the_theme_follows_the_system_until_it_is_chosen(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    dark = page.evaluate(colour)
    assert dark != light
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate(colour) == light
    page.get_by_role("button", name="Dark theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(colour) == dark
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(50)
    assert page.evaluate(colour) == dark  # chosen


def test_charts_can_be_turned_from_cost_to_time(page: Any) -> None:
    assert label(page, "Accuracy against what it costs").startswith("Accuracy against cost: plain")
    decision = page.locator("figure", has=page.get_by_role("heading", name="Accuracy against what it costs"))
    decision.locator("label", has_text="time").click()
    assert label(page, "Accuracy against what it costs").startswith("Accuracy against time: plain")
    curves = page.locator("figure", has=page.get_by_role("heading", name="Learning curves"))
    curves.get_by_role("radio", name="cost").focus()
    page.keyboard.press("ArrowRight")
    assert "training time, in seconds" in label(page, "Learning curves")
    curves.locator("label", has_text="training loss").click()
    assert label(page, "Learning curves").startswith("training loss")
    assert "RS2" not in label(page, "Learning curves")
    curves.get_by_role("button", name="RS2, equal budget (mixtrain-cutmix)").click()
    assert "RS2, equal budget (mixtrain-cutmix)" in label(page, "Learning curves")


def test_a_comparison_at_equal_time_opens_with_time(page_file: Path, browser: Any, tmp_path: Path) -> None:
    text = page_file.read_text()
    copy = tmp_path / "report.html"
    copy.write_text(text.replace('"unit":"cost"', '"unit":"time"'))
    assert copy.read_text() != text
    watched = Watched(browser, copy)
    assert label(watched.page, "Accuracy against what it costs").startswith("Accuracy against time: plain")
    decision = watched.page.locator(
        "figure", has=watched.page.get_by_role("heading", name="Accuracy against what it costs")
    )
    assert decision.get_by_role("radio", name="time").is_checked()
    watched.context.close()


def test_every_chart_has_its_numbers(page: Any) -> None:
    charts = page.locator("figure:has(details)")
    assert charts.count() == 6
    for chart in charts.all():
        chart.locator("summary").click()
        chart.locator("details tbody tr").nth(1).wait_for()
    row = page.locator("figure", has=page.get_by_role("heading", name="Accuracy against what it costs"))
    cells = row.locator("details tbody tr").first.locator("th, td").all_inner_texts()
    assert cells[0] == "plain"
    assert cells[2] == page.locator("table.results tbody td").first.inner_text().split(" ")[0]


def test_a_pointer_is_told_what_it_points_at(page: Any) -> None:
    chart = page.locator("figure", has=page.get_by_role("heading", name="Accuracy against what it costs"))
    chart.scroll_into_view_if_needed()
    chart.locator("svg[role=img] circle").last.hover()
    assert "× the cost" in chart.locator(".tip").inner_text()


def test_runs_alone_and_what_is_missing_are_shown_too(browser: Any, page_file: Path, tmp_path: Path) -> None:
    """A run with and one without its history, one whose pictures are gone, and a comparison that has barely begun."""
    out = page_file.parent
    whole, silent, begun, blind = folders = [tmp_path / name for name in ("whole", "silent", "begun", "blind")]
    for folder in (whole, silent, blind):
        shutil.copytree(out / "runs" / "mixtrain-cutmix" / "seed-0", folder)
    shutil.rmtree(silent / "history")
    begun.mkdir()
    shutil.copy(out / "compare.yaml", begun)
    settings = (blind / "config.yaml").read_text()
    (blind / "config.yaml").write_text(re.sub(r"data_fingerprint: .*", "data_fingerprint: other", settings))
    done = run("report", *folders, "--out", tmp_path / "all.html")
    assert done.returncode == 0, done.stderr
    watched = Watched(browser, tmp_path / "all.html")
    page = watched.page
    assert page.locator("article").count() == 3
    assert page.locator("nav a").count() == 3
    notes = " ".join(page.locator(".note").all_inner_texts())
    assert "kept no history" in notes
    assert "undefined" not in notes
    assert "no longer what the run was trained on" in notes
    explorer = page.locator(".explorer").last
    assert page.locator(".explorer").count() == 2
    blank = explorer.locator(".thumbs button", has=page.locator(".blank")).nth(5)
    blank.click()
    assert explorer.locator(".who dd").first.inner_text() == blank.get_attribute("data-index")
    assert watched.wrong == []
    watched.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_sticks_out(browser: Any, page_file: Path, scheme: str) -> None:
    options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": scheme}
    watched = Watched(browser, page_file, **options)
    page = watched.page
    width = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width[0] <= width[1] == 390
    widths = "[...document.querySelectorAll('.plot svg')].map(s => s.getBoundingClientRect().width)"
    assert max(page.evaluate(widths)) <= 390
    for size in (800, 390):  # charts are drawn anew
        page.set_viewport_size({"width": size, "height": 844})
        page.wait_for_function(
            "w => [...document.querySelectorAll('.plot svg')].every(s => s.viewBox.baseVal.width <= w)", arg=size
        )
    assert watched.wrong == []
    watched.context.close()


def test_everything_that_acts_has_a_name_and_pictures_have_words(page: Any) -> None:
    nameless = """() => [...document.querySelectorAll('button, a, input, select')].filter((e) =>
        !(e.textContent.trim() || e.ariaLabel || (e.labels && e.labels.length))).map((e) => e.outerHTML)"""
    assert page.evaluate(nameless) == []
    wordless = "() => [...document.querySelectorAll('[role=img]')].filter((e) => !e.ariaLabel).length"
    assert page.evaluate(wordless) == 0
    twice = """() => { const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
        return ids.filter((id, i) => ids.indexOf(id) !== i); }"""
    assert page.evaluate(twice) == []
    steps = "() => [...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))"
    levels = page.evaluate(steps)
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_stand_out(page: Any, theme: str) -> None:
    """WCAG 2.2: 4.5 for text, 3 for what is drawn."""
    page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
    names = ["ink", "dim", "accent", "good", "bad", "open", *(f"c{i}" for i in range(7)), "reason1", "reason2", "wrong"]
    read = "names => names.map((n) => getComputedStyle(document.documentElement).getPropertyValue(`--${n}`).trim())"
    colours = dict(zip(names, page.evaluate(read, names), strict=True))
    for ground in page.evaluate(read, ["paper", "card"]):
        for name, colour in colours.items():
            needed = 4.5 if name in ("ink", "dim", "accent", "good", "bad", "open") else 3.0
            assert contrast(colour, ground) >= needed, (name, colour, ground)


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
