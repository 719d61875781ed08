"""Turns a summary (a dict, or logstat's JSON) into text or HTML."""

import html
import json


class BadSummary(ValueError):
    """The input is not a summary."""


def load(text):
    """Return the summary in text, checked for the keys that are used."""
    try:
        summary = json.loads(text)
    except json.JSONDecodeError as err:
        raise BadSummary(f"not JSON: {err}") from err
    if not isinstance(summary, dict):
        raise BadSummary("not an object")
    missing = {"requests", "bytes", "status", "top_paths"} - summary.keys()
    if missing:
        raise BadSummary("missing " + ", ".join(sorted(missing)))
    return summary


def size(n):
    """Return n bytes as a person reads it: 12989 is "12.7 KiB"."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.1f} {unit}" if unit != "B" else f"{n} B"
        n /= 1024
    return f"{n:.1f} GiB"


def text(summary):
    """Return the report as lines of text."""
    lines = [f"{summary['requests']} requests, {size(summary['bytes'])}"]
    lines += [f"  {cls}: {n}" for cls, n in sorted(summary["status"].items())]
    lines += [f"  {p['count']:>4} {p['path']}" for p in summary["top_paths"]]
    return "\n".join(lines) + "\n"


def page(summary):
    """Return the report as an HTML page. Paths come from strangers: escaped."""
    rows = "".join(
        f"<tr><td>{p['count']}</td><td>{html.escape(p['path'])}</td></tr>"
        for p in summary["top_paths"]
    )
    return f"<!doctype html><title>log report</title><p>{summary['requests']} requests</p><table>{rows}</table>"
