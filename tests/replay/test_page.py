from __future__ import annotations

import re
from html.parser import HTMLParser
from io import StringIO
from xml.etree import ElementTree

import pytest
from rich.console import Console

from serving.replay.page import page
from serving.replay.plots import Axis, Line, plot
from serving.replay.report import Check, Options, Report, Roofline
from serving.replay.table import print_report
from tests.replay.stages import a_report, a_stage

BROKEN = Check(name="errors", passed=False, said="many <failed>")


def table(report: Report) -> str:
    output = StringIO()
    print_report(report, Console(file=output, width=300))
    return output.getvalue()


@pytest.mark.parametrize("show", [page, table])
def test_every_output_says_simulated_scaled_and_invalid(show: object) -> None:
    report = a_report(a_stage(checks=(BROKEN,)), simulated="mi355x", options=Options(url="http://x", scale=0.1))
    text = show(report)  # type: ignore[operator]
    for word in ("SIMULATED", "SCALED", "INVALID"):
        assert word in text
    plain = show(a_report())  # type: ignore[operator]
    for word in ("SIMULATED", "SCALED", "INVALID"):
        assert word not in plain


def test_a_page_needs_nothing_else_and_escapes_what_it_quotes() -> None:
    text = page(a_report(a_stage(checks=(BROKEN,)), a_stage(offered=8.0), a_stage(offered=16.0, dollars_per_hour=20.0)))
    assert not re.search(r"(src|href)=|@import|url\(|<script", text)
    assert "many &lt;failed&gt;" in text
    assert text.count("<svg") == 5
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    open_tags: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br"):
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None: ...

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Balance().feed(text)
    assert open_tags == []


def test_each_loads_roofline_is_said_once_where_it_is_the_same() -> None:
    known = [
        a_stage(offered=offered).model_copy(update={"roofline": Roofline(share=0.1, said=f"{offered} is the most")})
        for offered in (4.0, 8.0)
    ]
    text = page(a_report(*known))
    assert "roofline, 4 requests/s, poisson: 4.0 is the most" in text
    assert "roofline, 8 requests/s, poisson: 8.0 is the most" in text
    assert page(a_report(a_stage(), a_stage(offered=8.0))).count("roofline: not known") == 1


def test_the_command_line_can_be_copied_into_a_shell() -> None:
    text = page(a_report(argv=("replay", "my profile.yaml", "--body", '{"top_k": 1}')))
    assert "replay &#x27;my profile.yaml&#x27; --body &#x27;{&quot;top_k&quot;: 1}&#x27;" in text


def test_without_a_price_there_are_no_dollars() -> None:
    text = page(a_report())
    assert "No price was given" in text
    assert "unknown" in table(a_report())


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], [(-1e-7, 5e9), (3e5, -2.0)]])
def test_plots_of_odd_points_are_drawn(points: list[tuple[float, float]]) -> None:
    ElementTree.fromstring(plot([Line("a", points, has_dots=True)], Axis("x"), Axis("y", 0)))


def test_many_stages_are_lines_of_a_table() -> None:
    text = table(a_report(*(a_stage(offered=float(2**number)) for number in range(7))))
    assert "64 requests/s, poisson" in text
    assert max(map(len, text.splitlines())) < 160
