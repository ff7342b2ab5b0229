"""A load that changes: lives of sandboxes (create, one cell, some rest, kill) after a plan, and what the pool did meanwhile; a plot of both."""

import os
import random
import threading
import time

from measuring import Box, percentiles

REST = 1.0  # seconds a sandbox lives on after its cell
# Parts of the run: share of its time, what comes, creates a second of each processor at its beginning and end (a burst: how many at once, how often).
PARTS = (
    (0.12, "a few", 0.05, 0.05),
    (0.20, "more and more", 0.05, 0.4),
    (0.10, "many", 0.4, 0.4),
    (0.18, "bursts", 8, 4),
    (0.12, "nothing", 0, 0),
    (0.10, "many again", 0.4, 0.4),
    (0.18, "fewer and fewer", 0.4, 0.05),
)


def plan(seconds):
    """(when each life begins, (begin, end, name) of each part); the same for the same length."""
    dice, times, parts, begin = random.Random(7), [], [], 0.0
    for share, name, first, last in PARTS:
        end = begin + share * seconds
        parts.append((begin, end, name))
        if name == "bursts":
            times += [begin + (i + 0.5) * (end - begin) / last for i in range(last) for _ in range(first)]
        else:
            at = begin
            while first or last:
                rate = (first + (last - first) * (at - begin) / (end - begin)) * os.cpu_count()
                at += dice.uniform(0.5, 1.5) / rate
                if at >= end:
                    break
                times.append(at)
        begin = end
    return sorted(times), parts


def run(server, seconds, pool):
    times, parts = plan(seconds)
    lives, samples, start, over = [], [], time.monotonic(), threading.Event()

    def life(at):
        try:
            begin = time.monotonic()
            box = Box(server)
            try:
                assert box.cell("1+1") == "2"
                lives.append({"at": at, "launch": box.launch, "ms": (time.monotonic() - begin) * 1000})
                time.sleep(REST)
            finally:
                box.kill()
        except Exception as e:
            lives.append({"at": at, "launch": "failed", "ms": 0, "failure": f"{type(e).__name__}: {str(e)[:200]}"})

    def watch():
        while True:
            p = pool(server)
            samples.append({"at": time.monotonic() - start, **{k: p[k] for k in ("ready", "size", "starting", "hits", "misses", "memoryMB")}})
            if over.wait(max(0.5, seconds / 600)):
                return
    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = []
    for at in times:
        time.sleep(max(0, start + at - time.monotonic()))
        threads.append(threading.Thread(target=life, args=(at,)))
        threads[-1].start()
    for t in threads:
        t.join()
    time.sleep(max(0, start + seconds - time.monotonic()))
    over.set()
    watcher.join()
    return {"seconds": seconds, "parts": parts, "lives": sorted(lives, key=lambda v: v["at"]), "samples": samples}


def tell(found):
    lines = [f"{len(found['lives'])} creates in {found['seconds']} s, each with a cell `1+1`, {REST:.0f} s of rest and a kill; the pool has the default bounds (1 to 16) and sizes itself.", "",
             "![Creates, the pool's size and its hit rate over time](pools.svg)", "",
             "| | creates | warm | cold | failed | hit rate | warm: p50, p99 ms | cold: p50, p99 ms | ready, mean | wanted, most |", "|---|---|---|---|---|---|---|---|---|---|"]
    for begin, end, name in [*found["parts"], (0, found["seconds"] + 1, "**in all**")]:
        some = [v for v in found["lives"] if begin <= v["at"] < end]
        by = {k: [v["ms"] for v in some if v["launch"] == k] for k in ("warm", "cold", "failed")}
        seen = [s for s in found["samples"] if begin <= s["at"] < end]
        warm, cold = percentiles(by["warm"]), percentiles(by["cold"])
        lines.append(f"| {name} | {len(some)} | {len(by['warm'])} | {len(by['cold'])} | {len(by['failed'])} | "
                     + (f"{len(by['warm']) / len(some) * 100:.0f} %" if some else "")
                     + "".join(f" | {t['p50_ms']:.0f}, {t['p99_ms']:.0f}" if t["n"] else " | " for t in (warm, cold))
                     + (f" | {sum(s['ready'] for s in seen) / len(seen):.1f} | {max(s['size'] for s in seen)} |" if seen else " | | |"))
    failures = [v["failure"] for v in found["lives"] if "failure" in v]
    return lines + ([f"\nThe first failure: {failures[0]}"] if failures else [])


# --- the plot ----------------------------------------------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 900, 56, 24, 40, 130, 52
WARM, COLD, WANTED, STARTING, INK, FAINT = "#2f7fb8", "#d9772b", "#222222", "#8a6bbd", "#333333", "#dddddd"


def nice(most):
    """The end of an axis that reaches `most`, and its step."""
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        if most <= 5 * step:
            return max(step * -(-most // step), step), step
    return most, most


class Panel:
    """One diagram over the time of the run."""

    def __init__(self, number, seconds, most, title, out, unit=""):
        self.bottom, self.seconds, self.out = TOP + number * (PANEL + GAP) + PANEL, seconds, out
        self.most, step = nice(most)
        out.append(f'<text x="{LEFT}" y="{self.bottom - PANEL - 18}" font-weight="bold">{title}</text>')
        for v in range(0, int(self.most) + 1, step):
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y(v)}" y2="{self.y(v)}" stroke="{FAINT}"/>'
                       f'<text x="{LEFT - 6}" y="{self.y(v) + 4}" text-anchor="end">{v}{unit}</text>')
        minute = 60 if seconds > 150 else 10
        for t in range(0, int(seconds) + 1, minute):
            out.append(f'<text x="{self.x(t)}" y="{self.bottom + 16}" text-anchor="middle">{f"{t // 60} min" if minute == 60 else f"{t} s"}</text>')

    def x(self, t):
        return round(LEFT + min(t, self.seconds) / self.seconds * (WIDTH - LEFT - RIGHT), 1)

    def y(self, v):
        return round(self.bottom - v / self.most * PANEL, 1)

    def steps(self, points, colour, fill=None, dash=""):
        """Each value holds until the next."""
        path, last = [], None
        for t, v in points:
            if last is not None:
                path.append(f"H{self.x(t)}")
            if v != last:
                path.append(f"{'M' + str(self.x(t)) + ',' if last is None else 'V'}{self.y(v)}")
            last = v
        if fill:
            area = f"M{self.x(points[0][0])},{self.bottom}L" + "".join(path)[1:] + f"V{self.bottom}Z"
            self.out.append(f'<path d="{area}" fill="{fill}" fill-opacity="0.3" stroke="none"/>')
        self.out.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"{f" stroke-dasharray={dash!r}" if dash else ""}/>')

    def bar(self, begin, end, low, high, colour):
        self.out.append(f'<rect x="{self.x(begin)}" y="{self.y(high)}" width="{max(0.5, self.x(end) - self.x(begin) - 0.6):.1f}" height="{self.y(low) - self.y(high):.1f}" fill="{colour}"/>')

    def key(self, entries):
        x = WIDTH - RIGHT
        for text, colour in reversed(entries):
            x -= 7 * len(text) + 22
            self.out.append(f'<rect x="{x}" y="{self.bottom - PANEL - 27}" width="10" height="10" fill="{colour}"/><text x="{x + 14}" y="{self.bottom - PANEL - 18}">{text}</text>')


def plot(found):
    """Three diagrams below each other, as SVG."""
    seconds, lives, samples = found["seconds"], found["lives"], found["samples"]
    height = TOP + 3 * PANEL + 3 * GAP - 12
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="{INK}">',
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    width = max(2, seconds // 100)
    slots = [[v for v in lives if begin <= v["at"] < begin + width] for begin in range(0, seconds, width)]
    creates = Panel(0, seconds, max(map(len, slots), default=1), f"Creates in {width} s", out)
    for begin, end, name in found["parts"]:
        for number in range(3):
            bottom = TOP + number * (PANEL + GAP) + PANEL
            out.append(f'<line x1="{creates.x(begin)}" x2="{creates.x(begin)}" y1="{bottom - PANEL}" y2="{bottom}" stroke="#999999" stroke-dasharray="2 3"/>')
        out.append(f'<text x="{creates.x(begin) + 3}" y="{creates.bottom - PANEL - 4}" font-size="10" fill="#777777">{name}</text>')
    for i, some in enumerate(slots):
        warm = sum(v["launch"] == "warm" for v in some)
        begin, end = i * width, min((i + 1) * width, seconds)
        if warm:
            creates.bar(begin, end, 0, warm, WARM)
        if len(some) > warm:
            creates.bar(begin, end, warm, len(some), COLD)
    creates.key((("warm", WARM), ("cold", COLD)))
    members = Panel(1, seconds, max(max(s["size"], s["ready"] + s["starting"]) for s in samples), "Members of the pool", out)
    members.steps([(s["at"], s["ready"]) for s in samples], WARM, WARM)
    members.steps([(s["at"], s["starting"]) for s in samples], STARTING)
    members.steps([(s["at"], s["size"]) for s in samples], WANTED, dash="4 2")
    members.key((("ready", WARM), ("starting", STARTING), ("wanted", WANTED)))
    rate = Panel(2, seconds, 100, "Hit rate of the last 20 creates", out, " %")
    if lives:
        rate.steps([(v["at"], 100 * sum(w["launch"] == "warm" for w in lives[max(0, i - 19):i + 1]) / min(20, i + 1)) for i, v in enumerate(lives)]
                   + [(seconds, 100 * sum(w["launch"] == "warm" for w in lives[-20:]) / len(lives[-20:]))], WARM)
    return "\n".join([*out, "</svg>", ""])
