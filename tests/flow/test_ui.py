"""The page `/ui` in a real browser: what it shows, how it changes; with the keyboard only, on a phone, in light and dark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from serving.settings import Settings
from tests.doubles.browser import CONTRASTS, DESK, PHONE, open_page, running_browser
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.tenants import bearer, tenants
from tests.flow.conftest import all_ready, chat, settings_over

pytestmark = pytest.mark.slow
PATIENCE = 20_000
"""Milliseconds: the page asks every two seconds, on a machine that may be busy."""
WIDTHS = (360, 480, 640, 820, 1024, 1180, 1300, 1340, 1440, 1920)
SPILLS = """
[...document.querySelectorAll(".pool *, #tenants *, #errors *, #playground *, .tiles *, .charts *")].filter((node) => {
  if (!node.checkVisibility() || node.closest(".unseen, option, caption, thead")) return false;
  const card = node.closest(".pool, #tenants, #errors, #playground, .tiles > div, .charts figure");
  return node.getBoundingClientRect().right > card.getBoundingClientRect().right + 0.5;
}).map((node) => [node.tagName, node.className, node.textContent.slice(0, 30)])
"""
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def patience() -> None:
    expect.set_options(timeout=PATIENCE)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with running_browser() as started:
        yield started


def settings_for(engine: ScriptedEngine, **sections: Any) -> Settings:
    given: dict[str, Any] = {
        "server": {"operator_port": 0},
        "pools": [{"name": "absent", "model": "other", "target": "gpu", "host": "nowhere.invalid", "port": 1}],
        "engine_load": {"period_seconds": 0.1, "stale_seconds": 5.0},
        "prices": {"models": {"tiny": {"prompt": 2.0, "output": 10.0}}},
        "probe": {"period_seconds": 0.1},
        "relay": {"max_attempts": 1},
    }
    return settings_over({"e1": engine}, **(given | sections))


@asynccontextmanager
async def shown(
    engine: ScriptedEngine, browser: Browser, *, page: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[tuple[Page, RunningGateway]]:
    async with RunningGateway(settings_for(engine, **sections)) as gateway:
        async with open_page(browser, gateway.operator_url, **(page or {})) as opened:
            yield opened, gateway


async def test_the_fleet_is_shown_and_its_changes_are(engine: ScriptedEngine, browser: Browser) -> None:
    async with shown(engine, browser) as (page, gateway):
        await expect(page.locator("#condition")).to_have_text("ready")
        row = page.locator(".pool").get_by_role("row").filter(has_text="e1")
        await expect(row).to_contain_text("ready")
        await expect(page.locator(".pool").filter(has_text="absent")).to_contain_text("No engine of other is known here")
        await expect(page.locator("#ttft-p50")).to_have_text("?unknown")
        await expect(page.locator("#dollars-hour")).to_have_text("?unknown")
        await expect(page.locator("#no-errors")).to_be_visible()
        assert (await ask(gateway.url, "/v1/chat/completions", chat(stream=True))).is_done
        await expect(page.locator("#ttft-p50")).not_to_contain_text("?")
        engine.default = Script(status=500)
        headers = {"x-request-id": "the-one"}
        assert (await ask(gateway.url, "/v1/chat/completions", chat(), headers=headers)).status == 502
        assert (await ask(gateway.url, "/v1/chat/completions", chat(model=HOSTILE))).status == 404
        failure = page.locator("#error-rows tr").filter(has_text="the-one")
        await expect(failure).to_contain_text("engine_error: engine_failed")
        await expect(failure).to_contain_text("e1")
        await expect(page.locator("#failed")).to_have_text("1")
        assert await page.locator("img").count() == 0
        engine.routes["/health"] = Script(status=503)
        await expect(row).to_contain_text("not ready")
        await expect(page.locator("#announcement")).to_contain_text("e1: not ready")
        await expect(page.locator("#condition")).to_have_text("not ready")


async def test_who_uses_it_is_shown(engine: ScriptedEngine, browser: Browser) -> None:
    long = "a-tenant-whose-name-is-as-long-as-the-name-of-a-tenant-may-be-63"[:63]
    known = tenants({"red": {}, long: {}})
    machines = {"routing": {"pools": {"default": {"dollars_per_hour": 3600.0}}}}
    async with shown(engine, browser, page={"viewport": PHONE}, **known, **machines) as (page, gateway):
        await expect(page.locator("#no-tenants")).to_be_visible()
        for tenant, tokens in (("red", 5), (long, 50)):
            answer = await ask(gateway.url, "/v1/chat/completions", chat(max_tokens=tokens), headers=bearer(tenant))
            assert answer.status == 200
        rows = page.locator("#tenant-rows tr")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text(long)
        await expect(rows.nth(1)).to_contain_text("red")
        await expect(rows.nth(1)).to_contain_text("$")
        await expect(page.locator("#no-tenants")).to_be_hidden()
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate(SPILLS) == [], width


async def test_a_gateway_that_is_gone_is_said_and_one_that_is_back_is_too(engine: ScriptedEngine, browser: Browser) -> None:
    async with shown(engine, browser) as (page, gateway):
        await page.route("**/ui/state", lambda route: route.abort())
        await expect(page.locator("#lost")).to_contain_text("has not answered since")
        await page.unroute("**/ui/state")
        await expect(page.locator("#lost")).to_be_hidden()
        await expect(page.locator("#live")).to_have_text("live")
        assert gateway.url


async def test_the_playground_streams_as_the_engine_writes(engine: ScriptedEngine, browser: Browser) -> None:
    gate = Gate(events=3)
    engine.default = Script(gate=gate, text=("Paris ", HOSTILE, " it is"))
    async with shown(engine, browser) as (page, gateway):
        await all_ready(gateway)
        await page.get_by_label("Prompt", exact=True).fill("What is the capital of France?")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#answer-text")).to_contain_text("Paris")
        await expect(page.locator("#progress")).to_have_text("answering")
        assert "it is" not in await page.locator("#answer-text").inner_text(), "the engine holds the rest"
        gate.open_all()
        await expect(page.locator("#progress")).to_contain_text("done")
        await expect(page.locator("#answer-text")).to_have_text(f"Paris {HOSTILE} it is")
        (record,) = engine.log.requests
        assert record.usage is not None
        prompt, output = record.usage.prompt_tokens, record.usage.completion_tokens
        await expect(page.locator("#asked-tokens")).to_contain_text(f"{prompt} in, {output} out")
        await expect(page.locator("#asked-ttft")).to_contain_text("s")
        await expect(page.locator("#asked-speed")).to_contain_text("tok/s")
        await expect(page.locator("#asked-price")).to_contain_text("$0.0")
        await expect(page.locator("#asked-price")).to_contain_text("charged")
        assert record.header("x-request-id") == await page.locator("#asked-id").inner_text()
        assert await page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(status=500), "502 engine_failed"),
        (Script(close_after=3), "engine_failed"),
        (Script(error_after=3), ":"),
    ],
)
async def test_no_failure_looks_like_a_success(engine: ScriptedEngine, browser: Browser, script: Script, said: str) -> None:
    engine.default = script
    async with shown(engine, browser) as (page, gateway):
        await all_ready(gateway)
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#refusal")).to_contain_text(said)
        await expect(page.locator("#progress")).to_have_text("failed")


async def test_stopping_ends_the_request_at_the_engine(engine: ScriptedEngine, browser: Browser) -> None:
    engine.default = Script(gate=Gate(events=3), chunks=50)
    async with shown(engine, browser) as (page, gateway):
        await all_ready(gateway)
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#asked-ttft")).not_to_have_text("–")
        await page.keyboard.press("Escape")
        await expect(page.locator("#progress")).to_have_text("stopped")
        await expect(page.get_by_role("button", name="Send")).to_be_enabled()
        assert (await ask(gateway.operator_url, "/metrics")).body.count(b"client_cancelled") >= 1


async def test_the_key_is_asked_for_and_kept_nowhere(engine: ScriptedEngine, browser: Browser) -> None:
    async with shown(engine, browser, auth={"api_key": "sk-test"}) as (page, gateway):
        await all_ready(gateway)
        key, send = page.get_by_label("Key", exact=True), page.get_by_role("button", name="Send")
        await send.click()
        assert not engine.log.requests, "the field is required"
        await key.fill("sk-wrong")
        await send.click()
        await expect(page.locator("#refusal")).to_contain_text("401 invalid_api_key")
        assert not engine.log.requests
        await key.fill("sk-test")
        await send.click()
        await expect(page.locator("#progress")).to_contain_text("done")
        assert len(engine.log.requests) == 1
        stored = await page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage), document.cookie, location.href]")
        assert stored[:3] == [[], [], ""] and "sk-" not in stored[3]
        await page.reload()
        await page.locator("main:not([hidden])").wait_for()
        assert await key.input_value() == ""


async def test_the_keyboard_is_enough(engine: ScriptedEngine, browser: Browser) -> None:
    async with shown(engine, browser) as (page, gateway):
        await all_ready(gateway)
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the pools")).to_be_focused()
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await expect(page.get_by_label("Model")).to_be_focused()
        for name in ("At most, tokens", "Prompt"):
            await page.keyboard.press("Tab")
            await expect(page.get_by_label(name, exact=True)).to_be_focused()
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", (
            "and one sees where one is"
        )
        await page.keyboard.press("ControlOrMeta+a")
        await page.keyboard.type("Hello?")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#progress")).to_contain_text("done")
        for place in ("#send", "#answer"):
            await page.keyboard.press("Tab")
            await expect(page.locator(place)).to_be_focused()
        (record,) = engine.log.requests
        assert b"Hello?" in record.body


async def test_every_field_figure_and_table_has_a_name(engine: ScriptedEngine, browser: Browser) -> None:
    async with shown(engine, browser) as (page, gateway):
        await all_ready(gateway)
        for role in ("textbox", "combobox", "spinbutton", "button", "table", "img", "region", "link", "heading"):
            for each in await page.get_by_role(role).all():  # type: ignore[arg-type]
                tree = await each.aria_snapshot()
                assert '"' in tree.splitlines()[0], f"{role} without a name: {tree}"
        assert await page.get_by_role("main").count() == 1
        assert await page.get_by_role("heading", level=1).count() == 1
        tiles = await page.locator("dl.tiles").aria_snapshot()
        assert "First token" in tiles and "unknown" in tiles, "a question mark is read as what it means"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
async def test_it_reads_well_and_nothing_moves(
    engine: ScriptedEngine, browser: Browser, viewport: dict[str, int], scheme: str
) -> None:
    long_name = "a-pool-whose-name-is-as-long-as-names-may-be-so-that-it-has-to-wrap"[:63]
    endpoints = [{"name": name, "url": engine.url, "model": "tiny", "pool": "default"} for name in ("e1", "e2", long_name)]
    engine.models = ["tiny"]
    async with shown(engine, browser, page={"viewport": viewport, "color_scheme": scheme}, endpoints=endpoints) as (
        page,
        gateway,
    ):
        await all_ready(gateway)
        for number in range(3):
            assert (await ask(gateway.url, "/v1/chat/completions", chat(stream=True))).is_done
            failing = {"x-request-id": f"{number}{'x' * 120}"}
            await ask(gateway.url, "/v1/chat/completions", chat(model="nobody's"), headers=failing)
        await expect(page.locator("#error-rows tr")).to_have_count(3)
        # What moves within half a second of a click is taken to be wanted, so that the answer has to take longer.
        engine.default = Script(ttft_seconds=0.6, itl_seconds=0.005, chunks=200)
        await page.evaluate("window.shifts.length = 0")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#progress")).to_contain_text("done")
        seen = await page.evaluate("window.shifts")
        assert sum(shift[0] for shift in seen) < 0.01, f"what is read must not move away: {seen}"
        wide = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide[0] <= wide[1], f"{wide}: it scrolls sideways"
        assert await page.evaluate(SPILLS) == [], "nothing sticks out of its card, or is cut off"
        poor = [each for each in await page.evaluate(CONTRASTS) if each[0] < 4.5]
        assert poor == []
        small = await page.evaluate(
            "[...document.querySelectorAll('button, select, input')].filter((node) => node.checkVisibility())"
            ".map((node) => node.getBoundingClientRect().height).filter((height) => height < 32)"
        )
        assert small == [], "a thumb needs room"


async def test_nothing_sticks_out_at_any_width(engine: ScriptedEngine, browser: Browser) -> None:
    """With the longest of everything."""
    pools = {"default": {"dollars_per_hour": 987_654.32}}
    async with shown(engine, browser, routing={"pools": pools}) as (page, gateway):
        await all_ready(gateway)
        engine.metric_overrides |= {"vllm:num_requests_running": 12_345.0, "vllm:num_requests_waiting": 12_345.0}
        assert (await ask(gateway.url, "/v1/chat/completions", chat(stream=True))).is_done
        failing = {"x-request-id": "x" * 120}
        await ask(gateway.url, "/v1/chat/completions", chat(model="nobody's"), headers=failing)
        await expect(page.locator("#error-rows tr")).to_have_count(1)
        await expect(page.locator(".pool").first).to_contain_text("12,345")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            assert await page.evaluate(SPILLS) == [], width
            wide = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert wide[0] <= wide[1], width


async def test_without_a_playground_the_page_says_why(engine: ScriptedEngine, browser: Browser) -> None:
    async with RunningGateway(settings_for(engine, server={"operator_port": 0, "operator_host": "0.0.0.0"})) as gateway:
        async with open_page(browser, gateway.operator_url) as page:
            await expect(page.locator("#playground-closed")).to_contain_text("nobody is asked for a key")
            await expect(page.get_by_role("button", name="Send")).to_be_hidden()
