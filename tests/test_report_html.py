"""The page: nothing live in it whatever the text, every link leads somewhere, the words say it."""

import dataclasses
import difflib
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elsa_build.model import Outcome, Region
from elsa_build.patches.review import Around
from elsa_build.reports import html, reading, sidebyside
from elsa_build.reports.sidebyside import RowKind, columns, of_diffs, unified, visible
from tests.reporting import EXAMPLES, example, filled

ATTRIBUTES = {
    *("aria-label", "aria-labelledby", "charset", "class", "content", "datetime", "href"),
    *("http-equiv", "id", "lang", "name", "open", "rel", "scope", "title"),
}


class Page(HTMLParser):
    """The tags of a page, its anchors, its links and its words."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.ids, self.links = [], set(), [], []
        self.words, self._stack = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._stack.append(tag)
        self.attributes |= {name for name, _ in attrs}
        given = dict(attrs)
        if "id" in given:
            self.ids.append(given["id"])
        if "href" in given:
            self.links.append(given["href"])

    def handle_endtag(self, tag):
        while self._stack and self._stack.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self._stack:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))


def page():
    return Page(html.render(example()))


def test_the_example_in_the_docs_is_what_is_rendered_now():
    review = reading.read(EXAMPLES)
    known = (EXAMPLES / "report.html").read_text(encoding="utf-8")

    made = html.render(review)

    difference = difflib.unified_diff(known.split("\n"), made.split("\n"), "docs", "now", n=1)
    assert made == known, "\n".join([*difference, "run: python docs/examples/make.py"])


def test_nothing_is_loaded_and_nothing_runs():
    text = html.render(example())

    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text.replace(
        "&#39;", "'"
    )
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page().tags)
    assert "url(" not in text
    assert "@import" not in text


def test_every_link_inside_leads_to_one_place():
    found = page()

    inside = [link[1:] for link in found.links if link.startswith("#")]
    assert len(inside) > 10
    assert set(inside) <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_links_outside_go_to_upstreams_project_only():
    outside = {link for link in page().links if not link.startswith("#")}

    assert all(link.startswith("https://github.com/example/kiln/") for link in outside)


def test_a_reader_finds_what_upstream_did_what_we_want_and_what_to_type():
    text = page().text

    order = [
        "2 of 6 patches clean on nightly",
        "Needs a person: 4",
        "Keep one slot for checkpoints",
        "elsa-build resolve reserve-a-slot --onto nightly",
        "Without a reserve a checkpoint waits until a request ends",
        "Measure again before it ships",
        "python/kiln/pool.py:17 in SlotPool.take",
        "Hand out the slot that rested longest #218",
        "Mira Holt, 2026-02-25, changed these lines",
        "A stack gave the same few slots to everyone",
        "The patch changes 1 line.",
        "What the patch changes",
        "What upstream changed",
        "A proposal",
        "merged word by word",
    ]
    for words in order:
        before, found, text = text.partition(words)
        assert found, f"'{words}' does not come after what was before: ...{before[-200:]}"


def test_a_guards_objection_and_an_absorbed_patch_are_told():
    text = page().text

    assert "error E313 python/kiln/batch.py:16: imports module `kiln.clock`" in text
    assert "absorbed: upstream's commit carries the number of its pull request, 225" in text
    assert "Blocked by reserve-a-slot." in text


def test_a_clean_rebase_says_so_and_asks_for_nobody():
    rows = [row for row in example().rows if not row[0].failed]
    review = dataclasses.replace(
        example(),
        done=dataclasses.replace(example().done, steps=tuple(step for step, _ in rows)),
        cases=tuple(case for _, case in rows),
    )

    found = Page(html.render(review))

    assert "2 patches: clean on nightly" in found.text
    assert "Needs a person" not in found.text
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)


def test_an_empty_series_has_a_page():
    review = dataclasses.replace(
        example(), done=dataclasses.replace(example().done, steps=()), cases=()
    )

    assert "0 patches: clean on nightly" in Page(html.render(review)).text


# --- any text ---------------------------------------------------------------------------------

LIVE = [
    "<script>alert(1)</script>",
    "</pre></td></table><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "javascript:alert(1)//",
    "</style><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- --><b>",
    "\x00<\x00b>",
    "]]><a href=//evil.example>",
]


def assert_dead(review):
    text = html.render(review)
    found = Page(text)
    assert set(found.tags) <= set(page().tags)
    assert found.attributes <= ATTRIBUTES
    assert all(link.startswith(("#", "https://")) for link in found.links)
    assert len(re.findall("<style>", text)) == 1
    text.encode()


@pytest.mark.parametrize("text", LIVE)
def test_no_text_becomes_a_tag_or_runs(text):
    assert_dead(filled(example(), text))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet=st.characters()) | st.text(alphabet="<>&\"'/=! abscriptl{}%#\n"))
def test_any_text_is_shown_as_text(text):
    assert_dead(filled(example(), text))


def test_text_that_is_a_template_is_not_rendered():
    assert "{{ 7 * 7 }}" in Page(html.render(filled(example(), "{{ 7 * 7 }}"))).text


def test_the_ids_of_odd_patches_are_anchors_all_the_same():
    assert html.anchor("mamba-copy") == "patch-mamba-copy"
    assert re.fullmatch("patch-[0-9a-f]{12}", html.anchor('a" b\udcff'))
    assert html.anchor("a b") != html.anchor("a  b")


# --- rows -------------------------------------------------------------------------------------


def kinds(rows):
    return "".join(row.kind.value for row in rows)


def marked(row):
    return [part.text for part in row.parts if part.marked]


def test_words_are_marked_where_lines_pair_one_to_one():
    removed, added = columns("take(slot, 1)\n", "take(slot_id, 1)\n", None, by_base=True)

    assert (marked(removed), marked(added)) == (["slot"], ["slot_id"])


def test_no_word_is_marked_where_lines_do_not_pair_or_are_other_lines():
    uneven = columns("take(slot)\n", "take(slot, 1)\ngive()\n", None, by_base=True)
    other = columns("take(slot)\n", "import os\n", None, by_base=True)

    assert not any(marked(row) for row in (*uneven, *other))


def test_numbers_are_of_the_file_that_the_column_is_about():
    around = Around(line=10, above=("a", "b", "c"), below=("d",))

    left = columns("x\n", "y\nz\n", around, by_base=True)
    right = columns("x\n", "y\nz\n", around, by_base=False)

    assert [row.number for row in left] == [7, 8, 9, 10, None, None, 11]
    assert [row.number for row in right] == [7, 8, 9, None, 10, 11, 12]


def test_a_long_unchanged_part_is_counted_not_shown():
    lines = [f"{n}\n" for n in range(40)]

    rows = columns("".join(lines), "".join([*lines[:-1], "new\n"]), None, by_base=True)

    assert rows[0].text == "36 unchanged lines"
    assert kinds(rows) == "⋯   -+"


def test_a_region_without_a_change_on_one_side_is_shown_whole():
    assert kinds(columns("a\nb\n", "a\nb\n", None, by_base=True)) == "  "
    assert columns("", "", None, by_base=True) == ()


@given(
    st.lists(st.sampled_from(["a", "b b", "c(d)", ""]), max_size=8),
    st.lists(st.sampled_from(["a", "b b", "c(d)", ""]), max_size=8),
)
def test_rows_are_the_two_texts(old, new):
    base, changed = ("".join(f"{line}\n" for line in lines) for lines in (old, new))

    rows = columns(base, changed, None, by_base=True)

    assert [row.text for row in rows if row.kind is not RowKind.ADDED] == old
    assert [row.text for row in rows if row.kind is not RowKind.REMOVED] == new


DIFF = """\
diff --git a/a.py b/b.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -10,3 +12,3 @@ def take():
 one
--- two
+++ three
 four
\\ No newline at end of file
"""


def test_a_diff_of_git_becomes_rows():
    rows = unified(DIFF)

    assert kinds(rows) == "@@ -+ ⋯"
    assert [row.text for row in rows][:2] == ["a.py", "def take():"]
    assert [row.text for row in rows][3:5] == ["-- two", "++ three"]
    assert [row.number for row in rows if row.number] == [12, 13, 14]
    assert unified("") == ()


def test_a_diff_of_diffs_keeps_the_patchs_own_sign_as_text():
    changed = "--- as written\n+++ as landed\n@@\n  one\n-+two\n++zwei\n@@\n  end"

    assert kinds(of_diffs(changed)) == " -+⋯ "
    assert [row.text for row in of_diffs(changed)][:3] == [" one", "+two", "+zwei"]
    assert of_diffs("") == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\rb", "a␍b"),
        ("\x1b[31m", "␛[31m"),
        ("if a\u202e b", "if a[U+202E] b"),
        ("a\u200bb", "a[U+200B]b"),
        ("\udcff", "\N{REPLACEMENT CHARACTER}"),
        ("a\tb", "a\tb"),
        ("naïve 漢字 🙂", "naïve 漢字 🙂"),
        ("\x85", "[U+0085]"),
    ],
)
def test_nothing_hides_in_a_page(text, shown):
    assert visible(text) == shown


def test_a_line_of_data_is_not_compared_word_by_word():
    old, new = ("0, " * 500 + end + "\n" for end in "ab")

    rows = columns(old, new, None, by_base=True)

    assert not any(marked(row) for row in rows)
    assert sidebyside.CONTEXT == 3


def test_a_series_as_large_as_a_real_one_stays_a_page_that_can_be_mailed():
    step, case = next(row for row in example().rows if row[0].outcome is Outcome.CONFLICT)
    region = Region(line=1, ours="ours\n" * 40, base="base\n" * 40, theirs="theirs\n" * 40)
    site = dataclasses.replace(case.sites[0], region=region)
    steps = tuple(
        dataclasses.replace(step, patch=dataclasses.replace(step.patch, id=f"p{n}"))
        for n in range(60)
    )
    review = dataclasses.replace(
        example(),
        done=dataclasses.replace(example().done, steps=steps),
        cases=(dataclasses.replace(case, sites=(site, site)),) * 60,
    )

    assert len(html.render(review)) < 3_000_000
