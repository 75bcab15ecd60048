"""A headless Chromium, driven by playwright; the test is skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PHONE = {"width": 360, "height": 780}
DESK = {"width": 1440, "height": 900}


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """One browser process; pages of its own are for each test to open."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(PROGRAMS)} is here; Debian's package is chromium")
    async with async_playwright() as playwright:
        # No sandbox of its own, which root and containers cannot have; it sees pages of ours alone.
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    """A page in a profile of its own. Whatever it says or asks of another host than `url`'s fails the test."""
    complaints: list[str] = []
    given = {"viewport": DESK, "color_scheme": "light", "reduced_motion": "reduce"} | options
    context = await browser.new_context(**given)
    try:
        page = await context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("console", lambda said: complaints.append(f"{said.type}: {said.text}") if said.type == "error" else None)
        page.on("request", lambda sent: complaints.append(f"asked {sent.url}") if not sent.url.startswith(url) else None)
        await page.add_init_script(SHIFTS)
        await page.goto(f"{url}/ui")
        await page.locator("main:not([hidden])").wait_for()
        yield page
    finally:
        await context.close()
    assert [c for c in complaints if not c.startswith("error: Failed to load resource")] == []


SHIFTS = """
window.shifts = [];
const name = (node) => node?.id || node?.className || node?.nodeName;
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) {
    if (!shift.hadRecentInput) window.shifts.push([shift.value, ...shift.sources.map((source) => name(source.node))]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text(encoding="utf-8")
"""The contrast of each visible text with what is behind it, with its words and where they are."""
