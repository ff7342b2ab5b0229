"""The part of docs/compatibility.md that says what a run of the matrix found."""

from .calls import SUITES
from .clients import CLIENTS, ROOT

PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- what the test run found: scripts/compatibility -->\n", "<!-- end -->\n"
SIGNS = {"ok": "✓", "refused": "✗", "absent": "–"}


def render(found):
    """`found` is {client id: {call: result}} of every client, and none of them "failed"."""
    lines = ["| Client | Version | Pinned in | Calls that work | Refused | Not in this client |", "|---|---|---|---|---|---|"]
    for c in CLIENTS:
        results = list(found[c.id].values())
        registry, form = "npm" if c.pinned.endswith("lock.json") else "PyPI", c.form and f", {c.form}"
        lines.append(f"| {registry} `{c.package}`{form} | {c.version} | `{c.pinned}` | {results.count('ok')} | {results.count('refused')} | {results.count('absent')} |")
    for suite, groups in SUITES.items():
        clients = [c for c in CLIENTS if c.suite == suite]
        for group, calls in groups.items():
            lines += ["", f"| {group} | " + " | ".join(c.column for c in clients) + " | |", "|---|" + ":-:|" * len(clients) + "---|"]
            for name, what in calls:
                lines.append(f"| {name} | " + " | ".join(SIGNS[found[c.id][name]] for c in clients) + f" | {what} |")
    return "\n".join(lines) + "\n"


def split(text):
    """Before the part, the part, after it."""
    head, rest = text.split(BEGIN)
    part, tail = rest.split(END)
    return head + BEGIN, part, END + tail
