"""Serves the HTML report on loopback."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from report import render


def server(summary, port=0):
    """Return a server on 127.0.0.1 (port 0: any free one) that shows summary."""
    body = render.page(summary).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            """Say nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
