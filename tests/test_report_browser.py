"""The page in a real browser, at a phone's width and a desk's, light and dark."""

import dataclasses
import html as escaping
import json
import re
import shutil
import subprocess
import zlib

import pytest

from elsa_build.reports import html
from tests.reporting import example

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

MEASURE = """
<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="f" style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<script>
document.getElementById("f").onload = () => {{
  const d = document.getElementById("f").contentDocument;
  const links = [...d.querySelectorAll('a[href^="#"]')];
  const dead = links.filter(a => !d.getElementById(decodeURIComponent(a.hash.slice(1)))).length;
  const wide = [...d.body.querySelectorAll("*")].filter(
    e => !e.closest(".skip, .sr, .index thead") && e.getBoundingClientRect().right > {width} + 1);
  const focus = links.filter(a => a.tabIndex < 0).length;
  const columns = d.querySelector(".columns");
  const split = getComputedStyle(columns).gridTemplateColumns.split(" ").length;
  document.title = JSON.stringify([
    d.documentElement.scrollWidth, links.length, dead, wide.map(e => e.className || e.tagName),
    focus, split]);
}};
</script>
"""


def chromium(folder, *flags):
    run = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags]
    return subprocess.run(run, capture_output=True, text=True, check=False, timeout=120)


def measured(folder, width, page):
    """Return what the browser says of a page in a frame of that width."""
    wrapper = folder / "frame.html"
    wrapper.write_text(MEASURE.format(width=width, page=escaping.escape(page)), encoding="utf-8")
    ran = chromium(folder, f"--window-size={max(width, 500)},900", "--dump-dom", wrapper.as_uri())
    return json.loads(escaping.unescape(re.search("<title>(.*?)</title>", ran.stdout)[1]))


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (899, 1), (900, 2), (1400, 2)])
def test_nothing_overflows_every_link_has_a_place_and_the_columns_fold(tmp_path, width, columns):
    scroll, links, dead, wide, unreachable, split = measured(
        tmp_path, width, html.render(example())
    )

    assert scroll <= width
    assert wide == []
    assert links > 10
    assert dead == 0
    assert unreachable == 0
    assert split == columns


def test_a_line_without_a_blank_does_not_widen_a_phone(tmp_path):
    case = next(c for c in example().cases if c.sites and c.sites[0].region)
    site = case.sites[0]
    region = dataclasses.replace(site.region, theirs="x" * 900 + "\n", ours="y" * 900 + "\n")
    path = "python/" + "a" * 300 + ".py"
    cases = tuple(
        dataclasses.replace(c, sites=(dataclasses.replace(site, region=region, path=path),))
        if c is case
        else c
        for c in example().cases
    )

    scroll, _, _, wide, _, _ = measured(
        tmp_path, 390, html.render(dataclasses.replace(example(), cases=cases))
    )

    assert (scroll, wide) == (390, [])


@pytest.mark.parametrize("width", [500, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screenshot_is_of_the_scheme_that_was_asked_for(tmp_path, width, scheme):
    page, shot = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(html.render(example()), encoding="utf-8")
    chosen = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"

    chromium(tmp_path, chosen, f"--window-size={width},900", f"--screenshot={shot}", page.as_uri())

    pixels = first_row(shot.read_bytes())
    assert (sum(pixels) / len(pixels) < 128) == (scheme == "dark")


def first_row(png):
    """Return the bytes of the first line of pixels of a PNG."""
    at, packed = 8, b""
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + size]
        at += size + 12
    width = int.from_bytes(png[16:20], "big")
    size = {2: 3, 6: 4}[png[25]]
    line = bytearray(zlib.decompress(packed)[: 1 + size * width])
    # The first byte is the filter; above the first line all is 0, so Paeth is Sub and Up is none.
    share = {0: 0, 1: 1, 2: 0, 3: 0.5, 4: 1}[line[0]]
    for i in range(1 + size, len(line)):
        line[i] = (line[i] + int(line[i - size] * share)) % 256
    return bytes(byte for i, byte in enumerate(line[1:]) if i % size < 3)
