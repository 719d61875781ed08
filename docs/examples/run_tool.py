#!/usr/bin/env python3
"""How a harness runs a command that a model wrote, and learns what became of it.

The result comes in a file of its own, so stdout and stderr are the command's. AGENTGUARD is what
is called, such as "sudo -n agentguard".
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile


def run(argv, cwd=".", flags=()):
    """Run argv in the sandbox; return the result (docs/result.md), stdout and stderr."""
    guard = shlex.split(os.environ.get("AGENTGUARD", "agentguard"))
    with tempfile.NamedTemporaryFile(prefix="agentguard-") as f:  # agentguard opens it as you
        p = subprocess.run(
            [*guard, "exec", "-q", "--json", f.name, "-w", cwd, *flags, "--", *argv],
            stdin=subprocess.DEVNULL, capture_output=True)
        text = f.read()
    if not text:
        raise RuntimeError(p.stderr.decode(errors="replace"))
    return json.loads(text), p.stdout, p.stderr


if __name__ == "__main__":
    res, out, err = run(sys.argv[1:])
    sys.stdout.write(out.decode(errors="replace"))
    print("status", res["status"], "because of", res["reason"])
    if res.get("error"):
        print(res["error"])
    for denial in res["denials"].get("first", []):
        print(denial["text"])
    if res.get("changes"):
        print("staged:", {k: res["changes"][k] for k in ("added", "modified", "deleted")})
