"""The comparison's page holds everything it shows, and shows everything that is compared."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.catalog.load import load_catalog
from serving.catalog.page import page
from serving.catalog.plan import Wishes
from serving.catalog.side_by_side import side_by_side
from tests.doubles.catalogs import SHIPPED

CATALOG = load_catalog(SHIPPED)
VOID = {"meta", "rect", "br"}


class Strict(HTMLParser):
    """Every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, self.getpos()


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.name)
def test_every_model_has_a_page(model) -> None:
    rows = side_by_side(CATALOG, model, CATALOG.targets.values())
    text = page(model, Wishes(), rows)
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert {"svg", "table"} <= parser.seen
    for row in rows:
        assert f">{row.name}<" in text
    assert 'name="viewport"' in text
    assert re.findall(r"(?:src|href|url\(|@import|https?://)", text) == []
    assert parser.seen.isdisjoint({"script", "link", "img", "iframe"})


def test_what_does_not_run_is_told_with_its_reason() -> None:
    model = CATALOG.models["glm-5.2"]
    text = page(model, Wishes(), side_by_side(CATALOG, model, [CATALOG.targets["cpu-epyc-9005"]]))
    assert "does not run" in text and "Sparse Attention is not supported on CPU" in text
    assert "<svg" not in text and "<table" not in text


def test_a_name_that_would_be_markup_is_text() -> None:
    model = CATALOG.models["glm-5.2"].model_copy(update={"name": "a<b>&c", "description": "<script>x</script>"})
    text = page(model, Wishes(), [])
    assert "<script>" not in text and "a<b>" not in text and "a&lt;b&gt;&amp;c" in text


def test_the_command_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = CliRunner().invoke(cli.app, ["plan", "gpt-oss-120b", "--targets", "all", "--html", str(file)])
    assert done.exit_code == 0 and done.stdout == ""
    assert file.read_text().startswith("<!doctype html>")
