"""The HTML page, by what a real browser shows of it."""

import contextlib
import dataclasses
import html
import itertools
import json
import math
import re
import shlex
from pathlib import Path

import pytest

from amp_launcher.typed import plain
from launcher.commands import report
from launcher.plan.model import Published, PublishedArm
from launcher.report import page
from launcher.runs import store
from tests.launcher.compare import folders as comparisons

from . import folders

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></title><script>document.title='owned'</script>&amp;"


WIDE = "document.documentElement.scrollWidth"
BOXES = (
    "all => all.map(e => (({x, y, right, bottom, width}) => ({x, y, right, bottom, width}))(e.getBoundingClientRect()))"
)


@contextlib.contextmanager
def opened(browser, path, width=1280, height=900, **how):
    """A file in a window of that size."""
    context = browser.new_context(viewport={"width": width, "height": height}, **how)
    tab = context.new_page()
    tab.goto(path.as_uri())
    yield tab
    context.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The page of a sweep of three runs, one of them named by somebody with bad intentions."""
    root = tmp_path_factory.mktemp("runs")
    made = folders.sweep(root)
    plan = folders.plan("o2")
    plan["words"] = [HOSTILE]
    plan["swept"] = [["name", HOSTILE]]
    store.write_json(made[2] / "plan.json", plan)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page.render(dataclasses.replace(folders.document(*made), title="Three runs")))
    return path


@pytest.fixture(scope="module")
def tab(browser, three):
    """The page, opened from disk, with what it asked for and what went wrong."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page.requests, page.faults = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: page.faults.append(message.text))
    page.goto(three.as_uri())
    yield page
    page.close()


def test_the_page_shows_its_tables_and_charts_in_words(tab):
    shown = tab.inner_text("main")
    for words in ("Three runs", "Throughput", "peak memory", "Loss scale", "Requested and observed"):
        assert words in shown
    assert "2500 samples/s (2.50x)" in shown
    assert "python -m launcher amp=o0" in shown
    assert tab.locator("svg polyline.line").count() >= 3


def test_the_page_asks_for_nothing_but_itself_and_nothing_in_it_fails(tab, three):
    assert tab.requests == [three.as_uri()]
    assert tab.faults == []


def test_text_from_runs_is_shown_and_never_run(tab):
    assert tab.title() == "Three runs"
    assert HOSTILE in tab.inner_text("main")
    assert tab.locator("main img").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1200, "dark")])
def test_a_name_a_metric_and_the_words_of_a_script_that_are_html_are_drawn_as_text(
    browser, root, tmp_path, width, scheme
):
    script = {"file": f"script/{HOSTILE}.py", "arguments": [HOSTILE]}
    run = folders.run(root, folders.OTTER, planned={"name": HOSTILE, "recipe": "script", "script": script})
    rows = [{**row, "logged": {HOSTILE: 1.0}, "losses": {HOSTILE: 2.0}} for row in folders.rows(20)[1:21]]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "hostile.html"
    path.write_text(page.render(folders.document(run)))
    with opened(browser, path, width, color_scheme=scheme) as tab:
        captions = tab.locator("figcaption", has_text=HOSTILE)
        assert captions.count() == 2 and tab.title() == "some runs"
        assert tab.evaluate(WIDE) <= width
        assert all(box["x"] >= 0 and box["right"] <= width for box in captions.evaluate_all(BOXES))
        ground = luminance(tab.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor"))
        assert contrast(ground, luminance(captions.first.evaluate("e => getComputedStyle(e).color"))) > 7
        assert tab.inner_text("main").count("<img src=x") >= 4, "with what was requested, which is quoted"
        assert tab.locator("main img, main script").count() == 0
        box = tab.locator(".area").last.bounding_box()
        tab.mouse.move(box["x"] + 9, box["y"] + 9)
        assert tab.locator("img").count() == 0


def test_a_press_on_a_heading_sorts_and_a_second_one_turns_it_round(tab):
    table = tab.locator("table").first
    rates = lambda: table.locator("tbody tr td:nth-child(4)").all_inner_texts()  # noqa: E731
    heading = table.get_by_role("button", name="samples/s")
    heading.click()
    assert rates() == ["1000", "2000", "2500"]
    heading.click()
    assert rates() == ["2500", "2000", "1000"]
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("samples/s")


def test_what_has_no_value_stays_last_whichever_way_it_is_sorted(browser, root, tmp_path):
    runs = [folders.run(root, name) for name in (folders.OTTER, folders.OWL, "20260102-030407-brave-panda")]
    (runs[1] / "result.json").unlink()
    (runs[1] / "metrics.jsonl").unlink()
    path = tmp_path / "report.html"
    path.write_text(page.render(folders.document(*runs)))
    with opened(browser, path) as tab:
        table = tab.locator("table").first
        for _ in range(2):
            table.get_by_role("button", name="samples/s").click()
            assert table.locator("tbody tr").last.inner_text().startswith("brave-owl")


def test_dark_and_light_follow_the_readers_choice_and_can_be_read(browser, three):
    grounds = {}
    for scheme in ("light", "dark"):
        with opened(browser, three, color_scheme=scheme) as tab:
            colours = "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
            ground, ink = map(luminance, tab.eval_on_selector("body", colours))
            lines = tab.eval_on_selector_all("polyline", "all => all.map(e => getComputedStyle(e).stroke)")
            quiet = luminance(tab.eval_on_selector("small", "e => getComputedStyle(e).color"))
        grounds[scheme] = ground
        assert contrast(ground, ink) > 7
        assert contrast(ground, quiet) > 4.5
        assert all(contrast(ground, luminance(line)) > 3 for line in lines)
    assert grounds["dark"] < 0.05 < 0.9 < grounds["light"]


@pytest.mark.parametrize("width", [320, 768])
def test_a_narrow_screen_never_scrolls_sideways_and_cuts_no_label(browser, three, width):
    with opened(browser, three, width, 700) as tab:
        assert tab.evaluate(WIDE) <= width
        for label in tab.locator(".bars span, figcaption, .legend li").all():
            box = label.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width + 0.5, label.inner_text()
        assert tab.eval_on_selector("svg polyline", "e => e.closest('svg').getBoundingClientRect().width") > width / 2


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """The page of a comparison that repeats a published table, with GPUs that were sampled."""
    folder = tmp_path_factory.mktemp("comparison")
    source = Published(source="a page", hardware="a V100", arms=(PublishedArm(step_seconds=0.5), PublishedArm()))
    plan = comparisons.plan_of(folder, ("o0", [1] * 5), ("o2", [2] * 5), published=plain(source))
    (folder / "arms/01/telemetry").mkdir()
    header = "timestamp, index, uuid, memory.used [MiB], utilization.gpu [%]\n"
    rows = [f"2026/11/21 00:00:{second}.000, 0, GPU-a, 3000, 93\n" for second in (10, 20)]
    (folder / "arms/01/telemetry/1-0.gpu.csv").write_text(header + "".join(rows))
    path = tmp_path_factory.mktemp("page") / "comparison.html"
    path.write_text(page.render(comparisons.document(folder, plan)))
    return path


PANELS = (
    *(
        "Comparison",
        "Throughput over that of amp=o0",
        "peak memory",
        "Comparison with published figures",
        "published s/step",
        "our s/step",
    ),
    *("Rounds", "Requested and observed", "Loss", "GPU memory", "GPU utilisation", "What differs"),
    "To repeat it:",
)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_of_a_comparison_shows_all_that_was_measured(browser, comparison, width, scheme):
    with opened(browser, comparison, width, 844, color_scheme=scheme) as tab:
        shown = tab.inner_text("main")
        assert tab.evaluate(WIDE) <= width
    assert [panel for panel in PANELS if panel not in shown] == []
    assert shown.startswith("a comparison\n\namp=o2 gains the most: 2.000 times the throughput of amp=o0")


LOUD = [0.7, 1.4, 1.0, 1.2, 0.8]
LONG = "image=ngc-pytorch:25.06-py3-with-a-long-name"


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """The page of a comparison of six arms with long names: the second can't be told from the first, one is hostile."""
    folder = tmp_path_factory.mktemp("six")
    rounds = [comparisons.NOISE, LOUD, *[comparisons.TWICE] * 4]
    arms = [("o0" if number == 0 else "o2", own) for number, own in enumerate(rounds)]
    plan = comparisons.plan_of(folder, *arms)
    for number, name in enumerate(["float32", LONG, "bfloat16", f"{LONG}-2", HOSTILE, "last"]):
        path = folder / f"arms/{number:02}/plan.json"
        store.write_json(path, {**store.read_json(path), "arm": f"{number:02}", "swept": [["name", name]]})
        plan["arms"][number] |= {"swept": [["name", name]]}
    path = tmp_path_factory.mktemp("page") / "six.html"
    path.write_text(page.render(comparisons.document(folder, plan)))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comparison_opens_with_a_sentence_and_bars_that_are_as_long_as_their_ratios(browser, six, scheme):
    with opened(browser, six, 1200, color_scheme=scheme) as tab:
        assert tab.locator(".lead").count() == 1
        bars = tab.locator("figure").first
        ratios = [box["width"] for box in bars.locator("rect").evaluate_all(BOXES)]
        fills = bars.locator("rect").evaluate_all("all => all.map(e => getComputedStyle(e).fill)")
        at_one = {round(box["x"]) for box in bars.locator(".reference").evaluate_all(BOXES)}
        control = bars.locator("rect").first.evaluate_all(BOXES)[0]
        spans = [box["width"] for box in bars.locator(".interval").evaluate_all(BOXES) if box["width"] > 1]
        ground = luminance(tab.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor"))
        whisker = luminance(tab.eval_on_selector(".interval", "e => getComputedStyle(e).stroke"))
        table = tab.locator("table").first.evaluate_all(BOXES)[0]
        assert bars.evaluate_all(BOXES)[0]["bottom"] < table["y"], "above all tables"
        others = tab.locator("rect.other").count()
    assert ratios[2] == pytest.approx(2 * ratios[0], rel=0.02)
    assert at_one == {round(control["right"])}
    assert spans[0] > 4 * spans[1], "the noisy arm's interval is much wider"
    assert others == 1 and len(set(fills)) == 6, "what is too noisy to tell is grey"
    assert contrast(ground, whisker) > 7


def test_a_short_word_in_a_table_is_in_one_line(browser, every):
    with opened(browser, every, 1200) as tab:
        count = "const all = document.createRange(); all.selectNodeContents(e); return all.getClientRects().length"
        lines = tab.locator("td", has_text="proved").evaluate_all(f"all => all.map(e => {{ {count} }})")
        assert lines == [1] * 4


@pytest.mark.parametrize("width", [390, 1200])
def test_no_table_of_six_arms_with_long_names_is_moved_sideways(browser, six, width):
    with opened(browser, six, width) as tab:
        assert tab.evaluate(WIDE) <= width
        wider = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 40))"
        assert tab.eval_on_selector_all(".wide, pre", wider) == []
        cells = tab.locator("td:visible, th:visible").evaluate_all(BOXES)
        assert cells and all(box["x"] >= 0 and box["right"] <= width for box in cells)
        assert HOSTILE in tab.inner_text("main") and tab.locator("main img").count() == 0


def test_on_a_phone_a_row_is_a_block_with_the_names_of_its_values_and_is_still_sorted(browser, six):
    with opened(browser, six, 390) as tab:
        table = tab.locator("table").first
        row = table.locator("tbody tr").first
        boxes = row.locator("td:visible").evaluate_all(BOXES)
        assert boxes[-1]["y"] > boxes[0]["bottom"], "under each other"
        names = row.locator("td:visible").evaluate_all("all => all.map(e => getComputedStyle(e, '::before').content)")
        assert names[:3] == ['"arm"', '"batch"', '"samples/s"']
        for _ in range(2):
            table.get_by_role("button", name="ratio").click()
        assert table.locator("tbody tr td:first-child").all_inner_texts()[-1] in ("name=float32", f"name={LONG}")


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """The page of all runs of a root: a sweep, and a run whose name and reason are HTML."""
    root = tmp_path_factory.mktemp("every")
    folders.sweep(root)
    hostile = folders.run(root, folders.OTTER, planned={"name": HOSTILE})
    status = store.read_json(hostile / "status.json")
    store.write_json(hostile / "status.json", {**status, "state": "failed", "reason": HOSTILE})
    path = tmp_path_factory.mktemp("page") / "all of them.html"
    report.main(["--all", f"run_root={root}", "--html", str(path)])
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_of_all_runs_is_a_table_that_fits_and_sorts(browser, every, width, scheme):
    with opened(browser, every, width, color_scheme=scheme) as tab:
        assert tab.evaluate(WIDE) <= width
        cells = tab.locator("td:visible, th:visible").evaluate_all(BOXES)
        assert cells and all(box["x"] >= 0 and box["right"] <= width for box in cells)
        for name, first in (("run", "brave-otter"), ("samples/s", "calm-lake-000")):
            tab.get_by_role("button", name=name).click()
            assert tab.locator("tbody tr").first.locator("a").inner_text() == first
        ground = luminance(tab.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor"))
        link = luminance(tab.eval_on_selector("td a", "e => getComputedStyle(e).color"))
        assert contrast(ground, link) > 4.5
        assert HOSTILE in tab.inner_text("main") and tab.locator("main img").count() == 0
        assert tab.title().startswith("Runs of /")


def test_each_row_of_all_runs_leads_to_the_page_of_its_run(browser, every):
    with opened(browser, every) as tab:
        for number in range(4):
            link = tab.locator("tbody a").nth(number)
            words = link.inner_text()
            link.click()
            assert words in tab.inner_text("h1") and tab.locator("figure polyline").count() > 2
            tab.go_back()


@pytest.mark.parametrize(("width", "seen"), [(390, False), (1200, True)])
def test_on_a_phone_one_row_has_no_headings_to_sort_by(browser, root, tmp_path, width, seen):
    path = tmp_path / "run.html"
    path.write_text(page.render(folders.document(folders.run(root, folders.OTTER))))
    with opened(browser, path, width) as tab:
        assert tab.locator("thead").first.is_visible() is seen
        assert tab.locator("td", has_text="half_model_fp32_masters").first.is_visible()


def test_the_page_works_without_its_script(browser, three):
    with opened(browser, three, java_script_enabled=False) as tab:
        assert "2500 samples/s (2.50x)" in tab.inner_text("main")


def test_a_chart_tells_its_curves_where_it_is_pointed_at(tab):
    area = tab.locator("figure", has_text="loss by step").locator(".area")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    tab.mouse.move(box["x"] + 1, box["y"] + 20)
    step, *values = area.get_by_role("status").inner_text().splitlines()
    assert step == "step 1"
    assert {value.rsplit("  ")[0] for value in values} == {
        "000 amp=o0",
        "001 amp=o1",
        f"002 {shlex.quote(f'name={HOSTILE}')}",
    }
    assert {value.rsplit("  ")[-1] for value in values} == {"2.3"}
    tab.mouse.move(0, 0)
    assert not area.get_by_role("status").is_visible()


def test_the_arrow_keys_move_along_a_chart_and_escape_ends_it(tab):
    area = tab.locator("figure", has_text="scale by step").locator(".area")
    area.focus()
    tab.keyboard.press("End")
    status = area.get_by_role("status")
    assert status.inner_text().splitlines()[:2] == ["step 40", "001 amp=o1 (4 skipped)  65500"]
    tab.keyboard.press("Home")
    assert status.inner_text().startswith("step 1\n")
    tab.keyboard.press("Escape")
    assert not status.is_visible()


@pytest.fixture
def alone(browser, root, tmp_path):
    """The page of one run of 40 steps, a second each, in dark."""
    path = tmp_path / "run.html"
    path.write_text(page.render(folders.document(folders.run(root, folders.OTTER, scale=65536.0))))
    with opened(browser, path, 1200, 1000, color_scheme="dark") as tab:
        yield tab


def drag(tab, area, begin, end):
    """Press on that share of a chart's width and let go at another one."""
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    tab.mouse.move(box["x"] + begin * box["width"], box["y"] + 50)
    tab.mouse.down()
    tab.mouse.move(box["x"] + end * box["width"], box["y"] + 60, steps=3)
    tab.mouse.up()


def test_charts_of_a_run_lie_under_each_other_on_one_axis(alone):
    curves = alone.locator("figure svg").evaluate_all(BOXES)
    assert len(curves) >= 4 and len({(box["x"], box["right"]) for box in curves}) == 1
    assert [above["bottom"] < below["y"] for above, below in itertools.pairwise(curves)].count(False) == 0
    ticks = alone.locator(".x").all_inner_texts()
    assert len(set(ticks)) == 1 and ticks[0].split()[0] == "0"


def test_a_drag_zooms_all_charts_of_a_run_and_a_double_click_shows_all_again(alone):
    lines, first = alone.locator("polyline"), alone.locator(".area").first
    before = lines.evaluate_all(BOXES)
    whole = alone.locator(".x").all_inner_texts()
    drag(alone, first, 0.5, 0.75)
    after = lines.evaluate_all(BOXES)
    widths = zip(before, after, strict=True)
    assert all(wide["width"] == pytest.approx(4 * narrow["width"], rel=0.02) for narrow, wide in widths)
    seen = alone.locator(".area svg").evaluate_all("all => all.map(e => getComputedStyle(e).overflow)")
    assert set(seen) == {"hidden"}, "what lies outside is not drawn over the page"
    assert alone.evaluate(WIDE) <= 1200
    (ticks,) = set(alone.locator(".x").all_inner_texts())
    assert {float(tick) for tick in ticks.split()} <= set(range(19, 31)) and ticks not in whole
    losses = alone.locator(".y").first.inner_text().split()
    assert max(map(float, losses)) < 0.2, "the loss from its 20th step on, not from its first"
    box = first.bounding_box()
    alone.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    assert first.get_by_role("status").inner_text().splitlines()[0] == "seconds 24.4"
    first.dblclick()
    assert lines.evaluate_all(BOXES) == before and alone.locator(".x").all_inner_texts() == whole
    assert not alone.get_by_role("button", name="show all").is_visible()


def test_a_zoom_is_made_and_ended_by_keys_and_by_a_button_too(alone):
    first = alone.locator(".area").first
    whole = alone.locator(".x").first.inner_text()
    first.focus()
    for key in ("+", "+"):
        alone.keyboard.press(key)
    assert alone.locator(".x").first.inner_text() != whole
    alone.keyboard.press("Escape")
    assert alone.locator(".x").first.inner_text() == whole
    drag(alone, first, 0.2, 0.4)
    alone.get_by_role("button", name="show all").click()
    assert alone.locator(".x").first.inner_text() == whole


def test_a_chart_tells_the_values_of_all_charts_at_that_time(alone):
    area = alone.locator(".area").nth(1)
    box = area.bounding_box()
    alone.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    said = alone.get_by_role("status").all_inner_texts()
    assert len(said) == alone.locator(".area").count()
    assert {text.splitlines()[0] for text in said if text} == {"seconds 19.5"}


def test_a_table_is_sorted_by_the_keyboard_and_what_has_the_focus_is_seen(tab):
    heading = tab.locator("table").first.get_by_role("button", name="samples/s")
    heading.focus()
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Tab")
    outline = "e => getComputedStyle(e).outlineStyle + getComputedStyle(e).outlineWidth"
    assert heading.evaluate(outline) == "solid2px"
    before = tab.locator("th[aria-sort]").count() and tab.locator("th[aria-sort]").get_attribute("aria-sort")
    tab.keyboard.press("Enter")
    assert tab.locator("th[aria-sort]").first.get_attribute("aria-sort") != before


def test_an_equal_curve_under_another_is_seen(tab):
    assert tab.locator("figure", has_text="loss by step").locator("polyline.wider").count() == 2


SEEN_BY = {
    "most people": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no long wavelengths": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "no middle wavelengths": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no short wavelengths": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""From linear RGB to what is seen of it: Machado, Oliveira and Fernandes, 2009."""


@pytest.mark.parametrize("seen", SEEN_BY.values(), ids=SEEN_BY)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_differ_for_people_who_see_fewer(scheme, seen):
    sheet = (Path(page.__file__).parent / "page.css").read_text()
    colours = re.findall(r"--c\d: #(\w{6})", sheet)[8 * scheme :][:8]
    assert len(colours) == 8
    shown = [
        oklab([sum(a * b for a, b in zip(row, linear(colour), strict=True)) for row in seen]) for colour in colours
    ]
    for count, least in ((8, 0.1), (3, 0.19)):
        assert min(math.dist(one, other) for one, other in itertools.combinations(shown[:count], 2)) > least


def linear(colour):
    """Linear RGB of `rrggbb`."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def oklab(rgb):
    """From linear RGB; distances there are about as differences are seen: Ottosson, 2020."""
    r, g, b = (min(1.0, max(0.0, part)) for part in rgb)
    long, middle, short = (
        (a * r + e * g + o * b) ** (1 / 3)
        for a, e, o in ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300))
    )
    return (
        0.2105 * long + 0.7936 * middle - 0.0041 * short,
        1.9780 * long - 2.4286 * middle + 0.4506 * short,
        0.0259 * long + 0.7828 * middle - 0.8087 * short,
    )


def test_on_paper_the_page_is_light_and_nothing_is_cut(browser, three):
    with opened(browser, three, 794, 1123, color_scheme="dark") as tab:
        tab.emulate_media(media="print", color_scheme="dark")
        assert luminance(tab.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
        assert tab.evaluate(WIDE) <= 794


def test_the_page_names_no_address_on_any_network(three):
    text = html.unescape(re.sub(r"(?s)<main>.*</main>", "", three.read_text()))
    assert "http" not in text.replace("http-equiv", "")


def luminance(colour):
    """Relative luminance of `rgb(r, g, b)`, by WCAG 2."""
    red, green, blue = linear("".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)[:3]))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Contrast ratio, by WCAG 2."""
    light, dark = max(one, other), min(one, other)
    return (light + 0.05) / (dark + 0.05)
