"""Tests of the report: in process, as a process, over loopback, in a pool."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from report import render, serve

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAMPLE = (ROOT / "samples" / "access.json").read_text()


def double(n):
    return 2 * n


class Render(unittest.TestCase):
    def test_text(self):
        lines = render.text(render.load(SAMPLE)).splitlines()
        self.assertEqual(lines[0], "8 requests, 12.7 KiB")
        self.assertIn("     3 /", lines)

    def test_size(self):
        for n, want in ((0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")):
            self.assertEqual(render.size(n), want)

    def test_refuses(self):
        for bad in ("", "[]", "{}", '{"requests": 1}'):
            with self.assertRaises(render.BadSummary):
                render.load(bad)

    def test_escapes(self):
        summary = render.load(SAMPLE)
        summary["top_paths"] = [{"path": "/<script>", "count": 1}]
        self.assertNotIn("<script>", render.page(summary))


class Process(unittest.TestCase):
    def run_report(self, stdin):
        return subprocess.run([sys.executable, "-m", "report"], input=stdin, text=True, capture_output=True, cwd=ROOT)

    def test_command(self):
        done = self.run_report(SAMPLE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.startswith("8 requests"))

    def test_command_refuses(self):
        done = self.run_report("junk")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not JSON", done.stderr)

    def test_signal(self):
        child = subprocess.Popen(["sleep", "60"])
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(timeout=10), -signal.SIGTERM)

    def test_pool(self):
        with multiprocessing.Pool(2) as pool:
            self.assertEqual(pool.map(double, range(5)), [0, 2, 4, 6, 8])


class Files(unittest.TestCase):
    def test_rename_over(self):
        with tempfile.TemporaryDirectory() as d:
            old, new = pathlib.Path(d, "report.txt"), pathlib.Path(d, "report.txt.new")
            old.write_text("old")
            new.write_text(render.text(render.load(SAMPLE)))
            os.chmod(new, 0o640)
            os.replace(new, old)
            self.assertEqual(old.stat().st_mode & 0o777, 0o640)
            self.assertEqual(os.listdir(d), ["report.txt"])


class Serve(unittest.TestCase):
    def setUp(self):
        self.server = serve.server(render.load(SAMPLE))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.get = lambda path: opener.open(f"http://127.0.0.1:{self.server.server_port}{path}", timeout=10)

    def test_page(self):
        with self.get("/") as answer:
            self.assertEqual(answer.status, 200)
            self.assertIn(b"8 requests", answer.read())

    def test_missing(self):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.get("/none")
        caught.exception.close()
        self.assertEqual(caught.exception.code, 404)


if __name__ == "__main__":
    unittest.main()
