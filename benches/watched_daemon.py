#!/usr/bin/env python3
"""What being looked at costs: two daemons move rooms, with and without somebody who watches them.

    cargo build --release
    python3 benches/watched_daemon.py target/release/kvroom

Phases come in pairs (A B, B A, A B, …): in A nobody looks; in B /metrics of both daemons is scraped
once a second, and a client reads /v1/events of both, as an open dashboard does. In both the same
client starts rooms one after the other, 128 MiB each, over shared memory. Throughput is of whole
rooms, over HTTP, from the first request to the receiver's outcome; beside it stands the processor
time of both daemons, which varies less. Prints one JSON object with the median of the pairs' ratios
and the interval in which the true median lies nineteen times in twenty (order statistics of a
binomial). Exits 0 if the median is at least 0.97 and 1 if it is not; 2 if the whole interval does
not lie on one side of that, so that this machine cannot tell.

Only the standard library is needed.
"""
import argparse
import http.client
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LAYERS, PAGE_BYTES, PAGE_TOKENS, PAGES = 32, 64 << 10, 16, 128
ROOM_PAGES = PAGES // 2


class Daemon:
    """`kvroom serve` with one pool, and a client of it."""

    def __init__(self, program, name, folder):
        command = [program, "serve", "--name", name, "--http-listen", "127.0.0.1:0"]
        command += ["--node-listen", f"unix://{folder}/{name}.sock"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = json.loads(self.process.stdout.readline())
        self.http, self.address = ready["http"][0], ready["addresses"][0]
        self.client = http.client.HTTPConnection(self.http, timeout=60)
        self.memory = pathlib.Path("/dev/shm") / f"kvroom-bench-{os.getpid()}-{name}"
        self.ask("POST", "/v1/pools", {
            "name": "kv", "kind": "kv", "order": "layers_first", "layers": LAYERS, "pages": PAGES,
            "page_bytes": PAGE_BYTES, "page_tokens": PAGE_TOKENS,
            "memory": {"create": True, "path": str(self.memory)},
        })

    def ask(self, method, path, body=None):
        self.client.request(method, path, json.dumps(body) if body is not None else None,
                            {"Content-Type": "application/json"} if body is not None else {})
        answer = self.client.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {text.decode()}")
        return json.loads(text) if text else None

    def cpu(self):
        """Seconds of processor time so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.terminate()
        self.process.wait(30)
        for left in self.memory.parent.glob(f"{self.memory.name}*"):
            left.unlink()


class Watcher:
    """Scrapes a daemon once a second and reads its events, until told to stop."""

    def __init__(self, daemon):
        self.stop, self.scrapes, self.events = threading.Event(), 0, 0
        self.threads = [threading.Thread(target=f, args=(daemon.http,)) for f in (self.scrape, self.read)]
        for thread in self.threads:
            thread.start()

    def scrape(self, to):
        client = http.client.HTTPConnection(to, timeout=30)
        while not self.stop.wait(1.0):
            client.request("GET", "/metrics")
            answer = client.getresponse()
            assert answer.status == 200 and answer.read().endswith(b"# EOF\n")
            self.scrapes += 1

    def read(self, to):
        client = http.client.HTTPConnection(to, timeout=30)
        client.request("GET", "/v1/events")
        answer = client.getresponse()
        assert answer.status == 200, answer.status
        while not self.stop.is_set():
            # One event a second comes at least.
            if answer.readline().startswith(b"event:"):
                self.events += 1
        client.close()

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)


def room(prefill, decode, number):
    """One room of 128 MiB, from the first request to its outcome."""
    here, there = list(range(ROOM_PAGES)), list(range(ROOM_PAGES, PAGES))
    total = ROOM_PAGES * PAGE_TOKENS
    decode.ask("POST", "/v1/rooms", {"role": "receive", "id": number, "from": ["prefill"],
                                     "pages": [{"pool": "kv", "pages": there}]})
    prefill.ask("POST", "/v1/rooms", {"role": "send", "id": number})
    prefill.ask("POST", f"/v1/rooms/{number}/chunks", {"tokens": [0, total], "pool": "kv", "pages": here})
    prefill.ask("POST", f"/v1/rooms/{number}/finish", {"total": total})
    seen = decode.ask("GET", f"/v1/rooms/{number}?role=receive&wait=30s&for=released")
    if seen["outcome"] != {"end": "done"}:
        raise SystemExit(f"room {number}: {seen['outcome']}")
    prefill.ask("GET", f"/v1/rooms/{number}?role=send&wait=30s&for=released")


def phase(prefill, decode, seconds, numbers):
    """Bytes a second, and seconds of processor time a GB."""
    begun, cpu, rooms = time.monotonic(), prefill.cpu() + decode.cpu(), 0
    while time.monotonic() - begun < seconds:
        room(prefill, decode, next(numbers))
        rooms += 1
    moved = rooms * ROOM_PAGES * LAYERS * PAGE_BYTES
    took = prefill.cpu() + decode.cpu() - cpu
    return moved / (time.monotonic() - begun), took / moved * 1e9


def interval(ratios):
    """Where the true median lies nineteen times in twenty."""
    n, ratios = len(ratios), sorted(ratios)
    outside, k = 0.0, 0
    while k < n // 2 and outside + math.comb(n, k) / 2**n <= 0.025:
        outside += math.comb(n, k) / 2**n
        k += 1
    return ratios[max(k - 1, 0)], ratios[n - max(k, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program", help="a release build of kvroom")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each phase")
    parser.add_argument("--pairs", type=int, default=24, help="how often A and B")
    options = parser.parse_args()
    numbers = iter(range(1, 1 << 62))
    found, scrapes, events = {"A": [], "B": []}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        prefill = Daemon(options.program, "prefill", folder)
        decode = Daemon(options.program, "decode", folder)
        try:
            decode.ask("POST", "/v1/peers", {"address": prefill.address})
            phase(prefill, decode, 2.0, numbers)  # Pages are touched, buffers grown.
            for pair in range(options.pairs):
                for which in "AB" if pair % 2 == 0 else "BA":
                    watchers = [Watcher(prefill), Watcher(decode)] if which == "B" else []
                    found[which].append(phase(prefill, decode, options.seconds, numbers))
                    for watcher in watchers:
                        watcher.end()
                        scrapes, events = scrapes + watcher.scrapes, events + watcher.events
        finally:
            prefill.end()
            decode.end()
    if scrapes == 0 or events == 0:
        sys.exit("nobody watched")
    rates, costs = ([b[i] / a[i] for a, b in zip(found["A"], found["B"])] for i in (0, 1))
    ratio, (low, high) = statistics.median(rates), interval(rates)
    gb = {which: round(statistics.median(rate for rate, _ in all) / 1e9, 3) for which, all in found.items()}
    print(json.dumps({
        "gb_per_s": gb, "watched_over_unwatched": round(ratio, 4), "interval": [round(low, 4), round(high, 4)],
        "pairs": options.pairs, "processor_time_ratio": round(statistics.median(costs), 4),
        "processor_time_interval": [round(x, 4) for x in interval(costs)],
        "scrapes": scrapes, "events": events}))
    if low < 0.97 <= high:
        return 2
    return 0 if ratio >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
