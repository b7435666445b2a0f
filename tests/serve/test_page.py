"""The page at `/`: every panel used in a browser as a person would, with the results of the library."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.serve.service import Service
from tests.helpers.browser import Browser, browsing
from tests.helpers.indexes import build, write_files
from tests.helpers.serving import listening, serving
from tests.helpers.task_models import save_discriminator, save_models

pytestmark = [pytest.mark.slow, pytest.mark.weekly]

MASKED = "Tokyo is the largest [MASK] in [MASK]."
CONTEXT = "the cat sat on the mat in paris , a city . a dog went to the store ."
TEXTS = ["a dog", "the cat sat on the mat", "paris is a city"]
REFUSED = "Failed to load resource"  # what a browser says of every status of an error


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    folder = tmp_path_factory.mktemp("served")
    return {"builtin": "builtin", **save_models(folder), "electra": save_discriminator(folder / "electra")}


@pytest.fixture(scope="module")
def index(folders: dict[str, Path | str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexed")
    build(folder / "notes.db", write_files(folder / "notes", 8), folders["embed"]).close()
    return folder / "notes.db"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        browser.look(1280)
        yield browser


@pytest.fixture(scope="module")
def service(browser: Browser, folders: dict[str, Path | str], index: Path) -> Iterator[Service]:
    with serving(folders, {"again": index, "notes": index}) as service:
        yield service


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with listening(service) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Browser]:
    """The page, just opened. Afterwards, the browser must have had nothing to complain of."""
    browser.open(f"{address}/")
    browser.wait(lambda: browser.texts("nav a"))
    yield browser
    assert browser.complaints() == []


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path | str]) -> Callable[[str], mlxbert.Model]:
    return lambda name: mlxbert.load(folders[name])


def assert_bars(found: list[tuple[str, str]], expected: list[tuple[str, float]], places: int = 1) -> None:
    assert [name for name, _ in found] == [name for name, _ in expected]
    numbers = [float(number.removesuffix(" %")) for _, number in found]
    assert numbers == pytest.approx([number for _, number in expected], abs=0.51 * 10**-places)


Loaded = Callable[[str], mlxbert.Model]


def use(page: Browser, panel: str, button: str, texts: dict[str, str], **chosen: str) -> None:
    """Fills a panel in, as a person would, and presses its button; lists are named by their labels."""
    page.go(panel)
    for label, name in chosen.items():
        page.pick(label.replace("_", " "), name)
    for label, text in texts.items():
        page.type(label, text)
    page.press(button)


def test_masked_words(page: Browser, loaded: Loaded) -> None:
    text = f"\U0001f642 {MASKED}"
    use(page, "Masked words", "Fill", {"Text": text, "Words for each mask": "3"}, Model="builtin")
    found = mlxbert.fill_mask(loaded("builtin"), text, top_k=3)
    assert_bars(page.bars(), [(fill.token, 100 * fill.score) for mask in found.masks for fill in mask.fills])
    words = [mask.fills[0].token for mask in found.masks]
    assert page.texts("mark") == words
    assert page.said() == f"Filled: \U0001f642 Tokyo is the largest {words[0]} in {words[1]}."
    assert "builtin" in page.texts(".facts")[0] and "tokens" in page.texts(".facts")[0]


@pytest.mark.parametrize("text", ["[MASK]", "He likes snow [MASK] in winter.", "\U0001f642\n[MASK] ."])
def test_the_sentence_is_that_of_the_server(page: Browser, loaded: Loaded, text: str) -> None:
    use(page, "Masked words", "Fill", {"Text": text}, Model="builtin")
    sentence = "return document.querySelector('section:not([hidden]) .text').textContent"
    assert page.run(sentence) == mlxbert.fill_mask(loaded("builtin"), text).masks[0].fills[0].text


@pytest.mark.parametrize("model", ["sentiment", "emotions"])
def test_labels(page: Browser, loaded: Loaded, model: str) -> None:
    use(page, "Labels", "Classify", {"Text": TEXTS[1], "Second text": TEXTS[2]}, Model=model)
    found: Any = mlxbert.classify(loaded(model), (TEXTS[1], TEXTS[2]))
    shown = [(f"{one.label} ✓" if one.chosen else one.label, 100 * one.score) for one in found.labels]
    assert_bars(page.bars(), shown)


def test_numbers_in_the_place_of_labels(page: Browser, loaded: Loaded) -> None:
    use(page, "Labels", "Classify", {"Text": TEXTS[1]}, Model="stars")
    found: Any = mlxbert.classify(loaded("stars"), TEXTS[1])
    assert_bars(page.bars(), [("Value", found.value)], 3)


@pytest.mark.parametrize(("model", "multi"), [("nli", False), ("nli", True), ("embed", False)])
def test_labels_that_are_typed_in(page: Browser, loaded: Loaded, model: str, multi: bool) -> None:
    page.go("Your labels")
    if multi:
        page.field("Several may fit").click()
    texts = {"Text": TEXTS[1], "Labels": "cat\n\n city \ndog", "Hypothesis": "a {} ."}
    use(page, "Your labels", "Classify", texts, Model=model)
    labels = ["cat", "city", "dog"]
    found: Any = mlxbert.classify(loaded(model), TEXTS[1], labels=labels, hypothesis="a {} .", multi=multi)
    shown = [(name.removesuffix(" ✓"), number) for name, number in page.bars()]
    assert_bars(shown, [(one.label, 100 * one.score) for one in found.labels])


def test_names(page: Browser, loaded: Loaded) -> None:
    text = f"\U0001f642 {CONTEXT}"
    use(page, "Names", "Find names", {"Text": text})
    entities = mlxbert.tag(loaded("tag"), text).entities
    assert entities and page.texts(".text mark") == [f"{one.text}\u00a0{one.label}" for one in entities]
    assert page.texts(".legend mark") == list(dict.fromkeys(one.label for one in entities))
    unmarked = "const all = document.querySelector('section:not([hidden]) .text').cloneNode(true);"
    unmarked += "all.querySelectorAll('small').forEach((one) => one.remove()); return all.textContent"
    assert page.run(unmarked) == text


def test_answers(page: Browser, loaded: Loaded) -> None:
    use(page, "Answers", "Answer", {"Question": "the cat ?", "Text": CONTEXT, "Answers to show": "4"})
    found = mlxbert.answer(loaded("answer"), ("the cat ?", CONTEXT), top_k=4)
    assert page.texts("mark") == [found.answer] and page.said().startswith(f"{found.answer} (")
    assert_bars(page.bars(), [(one.answer, 100 * one.score) for one in found.spans])


def test_that_there_is_no_answer_and_that_a_text_was_truncated_is_said(page: Browser) -> None:
    none = {"question": "?", "answer": None, "start": None, "end": None, "score": 0.25, "no_answer_score": 0.75}
    reply = {"model": "answer", "results": [none], "tokens": 3, "truncated": [0]}
    page.go("Answers")
    page.run("window.fetch = async () => new Response(arguments[0])", json.dumps(reply))
    page.press("Answer")
    assert page.said() == "The text has no answer. 1 text was truncated"
    assert not page.all("mark") and "75.0 %" in page.texts(".answer")[0]
    assert "truncated" in page.texts(".facts")[0]


@pytest.mark.parametrize(("panel", "task", "button", "chosen"), [
    ("Similarity", mlxbert.similarity, "Compare", {"Model": "embed"}), ("Reranking", mlxbert.rerank, "Rerank", {}),
])  # fmt: skip
def test_ranked_texts(
    page: Browser, loaded: Loaded, panel: str, task: Any, button: str, chosen: dict[str, str]
) -> None:
    use(page, panel, button, {"Query": "a dog", "Texts": "\n".join(TEXTS)}, **chosen)
    expected = task(loaded(chosen.get("Model", "rerank")), "a dog", TEXTS)
    assert_bars(page.bars(), [(one.text, one.score) for one in expected], 3)
    assert expected[0].text in page.said()


def test_next_sentence(page: Browser, loaded: Loaded) -> None:
    first, second = "He went to the store.", "The moon is a planet."
    use(page, "Next sentence", "Judge", {"First": first, "Second": second}, Model="builtin")
    found = mlxbert.next_sentence(loaded("builtin"), (first, second))
    assert_bars(page.bars(), [("it follows", 100 * found.score), ("it does not", 100 - 100 * found.score)])
    assert ("not" in page.said()) is not found.is_next


def test_replaced_words(page: Browser, loaded: Loaded) -> None:
    use(page, "Replaced words", "Find replaced words", {})
    text = page.field("Text").get_property("value")
    found = [one for one in mlxbert.replaced(loaded("electra"), text).tokens if one.replaced]
    assert [mark.split()[0] for mark in page.texts("mark")] == [text[one.start : one.end] for one in found]


def test_vectors(page: Browser, loaded: Loaded) -> None:
    use(page, "Vectors", "Embed", {"Text": TEXTS[0]}, Model="embed", Embedded_as="a query")
    vector = mlxbert.embed(loaded("embed"), TEXTS[0], kind="query")
    assert f"{vector.size} numbers" in page.said()
    shown = [float(number) for number in page.texts(".vector")[0].split() if number != "…"]
    assert shown == pytest.approx(vector[:8].tolist(), abs=1e-4)
    assert json.loads(copied(page, "Copy all numbers")) == pytest.approx(vector.tolist(), abs=1e-6)


@pytest.mark.parametrize(("name", "mode"), [("meaning and words", "hybrid"), ("words", "words")])
def test_search(page: Browser, index: Path, name: str, mode: str) -> None:
    use(page, "Search", "Search", {"Query": "the cat sat", "Passages": "3"}, Index="notes", By=name)
    with mlxbert.open_index(index) as opened:
        hits = opened.search("the cat sat", top_k=3, mode=mode)  # type: ignore[arg-type]
    for short in page.all(".passage summary"):
        short.click()
    marks = str.maketrans("", "", "#")
    assert list(map(str.split, page.texts(".hits .text"))) == [hit.text.translate(marks).split() for hit in hits]
    folder = os.path.commonpath([os.path.dirname(hit.path or "") for hit in hits])
    assert page.texts(".hits b") == [os.path.relpath(hit.path or "", folder) for hit in hits]
    assert len(page.all(".hits .bar")) == len(hits)
    assert page.texts(".hits h3") == [hit.title for hit in hits if hit.title]
    for hit, where in zip(hits, page.texts(".where"), strict=True):
        lines = [hit.start_line, hit.end_line] if hit.start_line else [hit.place]  # records have a place
        assert all(str(one) in where for one in lines)


PASSAGES: list[dict[str, Any]] = [
    {
        "path": "/docs/refunds.md", "title": "Shop > Refunds", "start_line": 1, "end_line": 9,
        "text": "# Refunds\n\nWe are a *small* shop. **Refunds** take [two days](https://x.example), `refund_all` less."
        "\n\n- Keep the <b onclick=alert(1)>receipt</b>.\n> Thanks!",
        "shown": "… Refunds take two days, refund_all less. • Keep the <b onclick=alert(1)>receipt</b>. Thanks!",
        "whole": "Refunds\n\nWe are a small shop. Refunds take two days, refund_all less.\n\n"
        "• Keep the <b onclick=alert(1)>receipt</b>.\nThanks!",
        "marks": ["Refunds", "refund"],
    },
    {
        "path": "/src/refund.py", "title": "", "start_line": 7, "end_line": 7,
        "text": "# __init__ *args\nrefunds = 2**3**2", "whole": "# __init__ *args\nrefunds = 2**3**2",
        "shown": "# __init__ *args refunds = 2**3**2", "marks": ["refunds"],
    },
    {
        "path": None, "title": "", "start_line": None, "end_line": None, "text": "x" * 1000,
        "shown": "x" * 280 + " …", "whole": "x" * 1000, "marks": [],
    },
    {
        "path": "/docs/marks.md", "title": "", "start_line": 1, "end_line": 1, "text": "```", "shown": "```",
        "whole": "```", "marks": [],
    },
]  # fmt: skip


def test_a_passage_is_plain_text_with_the_words_of_the_query_marked_and_opens(page: Browser) -> None:
    usual: dict[str, Any] = {"query": "How do refunds work?", "place": "", "page": None, "fields": {}, "chunk": 1}
    scores = {"score": 0.016393, "vector_score": 0.71234, "word_score": 8.25, "rerank_score": None}
    results = [usual | scores | {"rank": rank} | one for rank, one in enumerate(PASSAGES, 1)]
    page.go("Search")
    page.run("window.fetch = async () => new Response(arguments[0])", json.dumps({"index": "a", "results": results}))
    page.press("Search")
    assert page.texts(".passage .short") == [one["shown"] for one in PASSAGES]
    assert [*page.texts(".passage .short mark")] == [mark for one in PASSAGES for mark in one["marks"]]
    assert not page.texts(".hits .text") and not page.all(".hits li b[onclick]")
    assert [where.split(".")[0] for where in page.texts(".where")] == ["1", "2", "3", "4"]
    for summary in page.all(".passage summary"):
        summary.click()
    assert not page.texts(".passage .short")
    assert page.texts(".hits .text") == [one["whole"] for one in PASSAGES]
    assert page.texts(".passage .help")[0] == "Scores: by meaning 0.712, by words 8.250"


def allow(page: Browser, *permissions: str) -> None:
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions})


def copied(page: Browser, button: str) -> str:
    allow(page, "clipboardReadWrite", "clipboardSanitizedWrite")
    buttons = [one for one in page.all("button.copy") if one.text == button]
    buttons[-1].click()
    page.wait(lambda: "Copied" in page.texts("button.copy"))
    script = "const done = arguments[0]; navigator.clipboard.readText().then(done, (problem) => done(String(problem)))"
    return str(page.driver.execute_async_script(script))


def test_what_is_shown_of_a_request_can_be_run(page: Browser) -> None:
    text = 'it\'s "the" cat \\ $HOME `sat` \U0001f642 [MASK]'
    use(page, "Masked words", "Fill", {"Text": text})
    page.all("summary")[0].click()
    expected = [token for token, _ in page.bars()]

    def shown(language: str) -> str:
        page.driver.find_element("css selector", f"section:not([hidden]) input[value={language}]").click()
        code = copied(page, "Copy")
        assert code == page.run("return document.querySelector('section:not([hidden]) pre').textContent")
        page.wait(lambda: "Copied" not in page.texts("button.copy"))
        return code

    def tokens(results: Any) -> list[str]:
        assert results[0]["text"] == text
        return [fill["token"] for fill in results[0]["masks"][0]["fills"]]

    run = subprocess.run(["bash", "-c", shown("curl")], capture_output=True, text=True, check=True)
    assert tokens(json.loads(run.stdout)["results"]) == expected
    code = shown("python").replace("print(json", "print(json.dumps(json").replace('["results"])', '["results"]))')
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert tokens(json.loads(run.stdout)) == expected
    script = f"const console = {{ log: arguments[0] }}; (async () => {{ {shown('javascript')} }})()"
    assert tokens(page.driver.execute_async_script(script)) == expected


def test_where_there_is_no_clipboard_the_request_is_selected(page: Browser) -> None:
    use(page, "Vectors", "Embed", {})
    page.all("summary")[0].click()
    allow(page, "geolocation")
    page.all("button.copy")[-1].click()
    page.wait(lambda: page.texts("button.copy")[-1] == "Selected: press Ctrl+C")
    assert page.run("return getSelection().toString()").split() == page.texts("pre")[0].split()


def test_an_error_stands_in_its_place_with_its_hint(page: Browser) -> None:
    use(page, "Masked words", "Fill", {"Text": "no mask at all"})
    (error,) = page.texts("section .error")
    assert "no mask at all" in error and "put [MASK] where" in error
    assert page.all("section .error")[0].get_attribute("role") == "alert"
    assert not page.all(".answer")
    use(page, "Masked words", "Fill", {"Text": MASKED})
    assert page.bars() and not page.texts("section .error")
    assert all(REFUSED in one for one in page.complaints())


def test_texts_are_never_markup(page: Browser) -> None:
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    for panel, label, button in (("Similarity", "Texts", "Compare"), ("Names", "Text", "Find names")):
        use(page, panel, button, {label: text})
        assert not page.driver.find_elements("css selector", "main img, main script")
        assert text in "".join(page.texts(".answer")).replace("\u00a0LOC", "").replace("\u00a0PER", "")


def test_with_the_keyboard_alone(page: Browser, loaded: Loaded) -> None:
    page.tab_to(lambda one: one.text == "Similarity").send_keys("\ue007")
    page.wait(lambda: page.texts("section h2") == ["Similarity"])
    assert page.driver.switch_to.active_element.tag_name == "h2"
    page.tab_to(lambda one: one.get_attribute("name") == "model").send_keys("embed")
    query = page.tab_to(lambda one: one.get_attribute("name") == "query")
    query.send_keys("\ue009a\ue000a dog")
    texts = page.tab_to(lambda one: one.get_attribute("name") == "texts")
    texts.send_keys("\ue009a\ue000" + "\n".join(TEXTS))
    texts.send_keys("\ue009\ue007")
    page.answered()
    expected = mlxbert.similarity(loaded("embed"), "a dog", TEXTS)
    assert_bars(page.bars(), [(one.text, one.score) for one in expected], 3)
    page.tab_to(lambda one: one.tag_name == "summary").send_keys("\ue007")
    page.tab_to(lambda one: one.get_attribute("type") == "radio").send_keys("\ue014")
    assert page.texts("pre")[0].startswith("import json")
    page.tab_to(lambda one: one.text == "Copy")


def test_links_lead_to_panels_and_back(page: Browser, address: str) -> None:
    page.go("Names")
    page.go("Vectors")
    assert page.driver.title.startswith("Vectors")
    page.driver.back()
    page.wait(lambda: page.texts("section h2") == ["Names"])
    assert [one.text for one in page.all("nav a[aria-current=page]")] == ["Names"]
    page.open(f"{address}/#answer")
    page.wait(lambda: page.texts("section h2") == ["Answers"])


def test_every_panel_can_be_read_at_every_width_and_named_by_a_screen_reader(page: Browser) -> None:
    nameless = """return [...document.querySelectorAll("input, select, textarea")]
      .filter((one) => ![...one.labels].some((label) => label.textContent.trim())).map((one) => one.outerHTML)"""
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for name in page.texts("nav a"):
        page.go(name)
        page.press(page.texts("section form .row button")[0])
        page.all("summary")[0].click()
        for width, dark in product((360, 900, 1600), (False, True)):
            page.look(width, dark=dark)
            assert page.contrast() == [], (name, width, dark)
            assert page.run(wide) <= 0, (name, width)
    assert page.run(nameless) == []
    page.look(1280)


def test_the_state_of_the_server_is_watched_while_somebody_looks(page: Browser, service: Service) -> None:
    asked = "return performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/api/status')).length"
    page.wait(lambda: page.run(asked) >= 2)
    assert page.texts("#loaded") == [f"{len(service.engine.loaded)} of {len(service.facts)} models"]
    assert (page.texts("#server"), page.texts("#queue")) == ([f"{mlxbert.__version__}, ready"], ["empty"])
    hide = "Object.defineProperty(document, 'hidden', {{ value: {}, configurable: true }});"
    change = "document.dispatchEvent(new Event('visibilitychange'))"
    page.run(hide.format("true") + change)
    before = page.run(asked)
    with pytest.raises(pytest.fail.Exception):
        page.wait(lambda: page.run(asked) > before + 1, 4.5)
    page.run(hide.format("false") + change)
    page.wait(lambda: page.run(asked) > before + 1)


def test_a_server_that_starts_or_ends_is_waited_for(browser: Browser, service: Service) -> None:
    service.ready = False
    with listening(service) as address:
        try:
            browser.open(f"{address}/")
            browser.wait(lambda: "not ready" in "".join(browser.texts("#trouble")))
            assert not browser.all("#body")
        finally:
            service.ready = True
        browser.wait(lambda: browser.texts("nav a"))
        assert not browser.all("#trouble")
        browser.go("Similarity")
    browser.press("Compare")
    assert "cannot be reached" in browser.texts("section .error")[0]
    browser.wait(lambda: browser.texts("#server") == ["cannot be reached"])
    assert all(REFUSED in one for one in browser.complaints())


KEY = "a key that is long enough"


def test_a_key_is_asked_for_where_the_server_wants_one(browser: Browser, service: Service) -> None:
    with listening(service, KEY) as address:
        browser.open(f"{address}/")
        browser.wait(lambda: browser.all("#key"))
        assert not browser.all("#body")
        field = browser.driver.switch_to.active_element
        assert field.get_attribute("type") == "password"
        field.send_keys("wrong\ue007")
        browser.wait(lambda: browser.texts("#key .error"))
        browser.driver.switch_to.active_element.send_keys(f"{KEY}\ue007")
        browser.wait(lambda: browser.texts("nav a"))
        assert not browser.all("#key")
        browser.go("Similarity")
        browser.press("Compare")
        assert browser.bars()
        browser.all("summary")[0].click()
        assert "Bearer YOUR_KEY" in browser.texts("pre")[0] and KEY not in browser.driver.page_source
        browser.open(f"{address}/")
        browser.wait(lambda: browser.all("#key"))  # once more: it is kept nowhere
        assert browser.run("return [localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert all(REFUSED in one or "api/" in one for one in browser.complaints())
