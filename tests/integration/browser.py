"""`Browser`: headless Chromium, driven over its DevTools protocol: sizes, colours, no scripts.

    with Browser(tmp_path) as browser:
        browser.look(width=360, dark=True)
        browser.open("http://127.0.0.1:7677/")
        browser.evaluate("document.title")

Only one page at a time. What the page logs or is refused is in `complaints`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 60.0  # seconds; it starts slowly on a busy machine
#: A folder that keeps the screenshots. By default they are in the folder of the test.
ARTEFACTS_VARIABLE = "SK_ARTEFACTS"
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0", "about:blank",
)  # fmt: skip
COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")


def chromium() -> str:
    """The path of Chromium. Without it the test is skipped; with SK_REQUIRE_ALL=1 it fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None and os.environ.get("SK_REQUIRE_ALL") == "1":
        raise FileNotFoundError("chromium is not installed: apt-get install chromium")
    if found is None:
        pytest.skip("chromium is not installed")
    return found


class Browser:
    """A context manager. Its profile is in `folder`, and is removed at the end."""

    def __init__(self, folder: Path) -> None:
        self._profile = folder / "browser"
        program = [chromium(), f"--user-data-dir={self._profile}", *ARGUMENTS]
        self._process = ServiceProcess(program, log_path=folder / "browser.log", name="chromium")
        self._loop = asyncio.new_event_loop()
        self._numbers = 0
        self._artefacts = Path(os.environ.get(ARTEFACTS_VARIABLE) or folder / "artefacts")
        self.complaints: list[dict[str, Any]] = []
        self._loaded = 0

    def __enter__(self) -> Self:
        self._process.start()
        try:
            port_file = self._profile / "DevToolsActivePort"
            wait_until(lambda: port_file.exists() and port_file.read_text(), TIMEOUT, "chromium")
            port = int(port_file.read_text().split()[0])
            self._loop.run_until_complete(self._connect(port))
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self._process.kill()

    async def _connect(self, port: int) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [each for each in await answer.json() if each["type"] == "page"]
        self._socket = await self._session.ws_connect(
            pages[0]["webSocketDebuggerUrl"], max_msg_size=0
        )
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._send(f"{domain}.enable", {})

    # ---- actions of a user

    def look(self, *, width: int, dark: bool = False, scripts: bool = True) -> None:
        """Set the size of the window in pixels, and the other properties, for all later pages."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, url: str) -> None:
        """Open the URL; returns when the page is loaded."""
        before = self._loaded
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.wait_loaded(before)

    def wait_loaded(self, before: int) -> None:
        """Wait until one page more is loaded than before."""
        wait_until(lambda: self.evaluate("1") and self._loaded > before, TIMEOUT, "a page to load")

    @property
    def loaded(self) -> int:
        return self._loaded

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression. This works even if scripts are off for the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def screenshot(self, name: str) -> Path:
        """A screenshot of the whole page, as NAME.png in the folder of artefacts."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        self._artefacts.mkdir(parents=True, exist_ok=True)
        path = self._artefacts / f"{name}.png"
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    # ---- the protocol

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._loop.run_until_complete(
            asyncio.wait_for(self._send(method, parameters), TIMEOUT)
        )

    async def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._numbers += 1
        number = self._numbers
        await self._socket.send_str(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
        while True:
            message = json.loads(await self._socket.receive_str())
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message}"
                result: dict[str, Any] = message["result"]
                return result
            self._loaded += message.get("method") == "Page.loadEventFired"
            if message.get("method") in COMPLAINTS:
                self.complaints.append(message["params"])
