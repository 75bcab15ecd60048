"""What NVIDIA's DCGM exporter and AMD's device metrics exporter say of the accelerators of one pod each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCELERATORS = 8
NVIDIA = (
    "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
    'DCGM_FI_DEV_POWER_USAGE{{gpu="{number}",UUID="GPU-{number}",device="nvidia{number}",modelName="NVIDIA B200",'
    'Hostname="node-1",container="engine",namespace="serving",pod="{pod}"}} {watts}\n'
)
AMD = (
    "# HELP gpu_package_power Current socket power in Watts\n# TYPE gpu_package_power gauge\n"
    'gpu_package_power{{gpu_id="{number}",hostname="node-2",container="engine",namespace="serving",pod="{pod}"}} {watts}\n'
)


@contextlib.contextmanager
def power_exporter(form: str, pod: str, watts: float) -> Iterator[str]:
    """Serve it on loopback; its address as host:port."""
    head, sample = form.rsplit("\n", 2)[0], form.rsplit("\n", 2)[1]
    samples = [sample.format(number=number, pod=pod, watts=watts) for number in range(ACCELERATORS)]
    text = "\n".join([head, *samples, ""]).encode()

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A scraper that is out of time hangs up."""

    server = Server(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
