"""Headless Chromium through chromedriver, spoken to in plain HTTP: pages, sizes, colour schemes, logs, pictures."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
START_S = 30.0


def missing() -> str:
    """What is not installed, or ''."""
    absent = [
        name for name, path in (("chromium", chromium()), ("chromedriver", shutil.which("chromedriver"))) if not path
    ]
    return f"{' and '.join(absent)} not installed (apt-get install chromium chromium-driver)" if absent else ""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One browser with a profile of its own; use it as a context."""

    def __enter__(self) -> Browser:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._profile = tempfile.TemporaryDirectory()
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False)
        self._await_driver()
        options = {"binary": chromium(), "args": [*FLAGS, f"--user-data-dir={self._profile.name}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        answer = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._http.delete(self._session)
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._http.close()
            self._profile.cleanup()

    def show(self, page: Path, width: int, dark: bool) -> None:
        """Open a file as a screen of this width would, in one colour scheme."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])
        self.logs("browser")
        self.logs("performance")
        self._post(f"{self._session}/url", {"url": page.resolve().as_uri()})

    def evaluate(self, script: str) -> Any:
        return self._post(f"{self._session}/execute/sync", {"script": script, "args": []})

    def cdp(self, command: str, **params: Any) -> Any:
        return self._post(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": params})

    def logs(self, kind: str) -> list[dict[str, Any]]:
        """Entries since the last call."""
        entries: list[dict[str, Any]] = self._post(f"{self._session}/se/log", {"type": kind})
        return entries

    def requests(self) -> list[str]:
        """URLs asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.cdp("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        shot = self.cdp("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _await_driver(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                if self._http.get("/status").json()["value"]["ready"]:
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"chromedriver is not ready after {START_S:.0f} s")
            time.sleep(0.1)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._http.post(path, json=body).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{path}: {answer['error']}: {answer['message'].splitlines()[0]}")
        return answer
