"""An engine without a model: answers /health, and has a child in a session of its own, as a worker would be.

Behaviour by words on the command line: `PORT [die-at-start|exit-2|never-ready|deaf]`.
"""

import http.server
import os
import signal
import subprocess
import sys


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True


port, words = int(sys.argv[1]), sys.argv[2:]
core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "core-of-engine"], start_new_session=True)
print(f"engine {os.getpid()} core {core.pid}", flush=True)
if "die-at-start" in words:
    print("RuntimeError: the cache does not fit", flush=True)
    sys.exit(7)
if "exit-2" in words:
    print("usage: no such flag", flush=True)
    sys.exit(2)
if "deaf" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "never-ready" in words:
    print("INFO Starting to load model fake...", flush=True)
    core.wait()
Server(("127.0.0.1", port), Health).serve_forever()
