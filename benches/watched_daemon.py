#!/usr/bin/env python3
"""What being looked at costs: two daemons move rooms, with and without somebody who watches them.

    cargo build --release
    python3 benches/watched_daemon.py target/release/kvroom

Phases alternate (A B A B …): in A nobody looks; in B /metrics of both daemons is scraped once a
second, and a client reads /v1/events of both. In both the same client starts rooms one after the
other, 128 MiB each, over shared memory. Throughput is of whole rooms, over HTTP, from the first
request to the receiver's outcome. Prints one JSON object; exits 1 if the median of B is more than
three per cent below the median of A, and 2 if A by itself varies too much to tell.

Only the standard library is needed. Run it on a quiet machine: two phases of A that differ by more
than three per cent say nothing.
"""
import argparse
import http.client
import json
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

    def end(self):
        self.process.terminate()
        self.process.wait(30)
        self.memory.unlink(missing_ok=True)


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
    """Bytes a second."""
    begun, rooms = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        room(prefill, decode, next(numbers))
        rooms += 1
    return rooms * ROOM_PAGES * LAYERS * PAGE_BYTES / (time.monotonic() - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program", help="a release build of kvroom")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase")
    parser.add_argument("--pairs", type=int, default=4, help="how often A and B")
    options = parser.parse_args()
    numbers = iter(range(1, 1 << 62))
    found = {"A": [], "B": []}
    scrapes = events = 0
    with tempfile.TemporaryDirectory() as folder:
        prefill = Daemon(options.program, "prefill", folder)
        decode = Daemon(options.program, "decode", folder)
        try:
            decode.ask("POST", "/v1/peers", {"address": prefill.address})
            phase(prefill, decode, 2.0, numbers)  # Pages are touched, buffers grown.
            for _ in range(options.pairs):
                found["A"].append(phase(prefill, decode, options.seconds, numbers))
                watchers = [Watcher(prefill), Watcher(decode)]
                found["B"].append(phase(prefill, decode, options.seconds, numbers))
                for watcher in watchers:
                    watcher.end()
                    scrapes, events = scrapes + watcher.scrapes, events + watcher.events
        finally:
            prefill.end()
            decode.end()
    a, b = statistics.median(found["A"]), statistics.median(found["B"])
    spread = (max(found["A"]) - min(found["A"])) / a
    show = {k: [round(x / 1e9, 3) for x in v] for k, v in found.items()}
    print(json.dumps({"gb_per_s": show, "watched_over_unwatched": round(b / a, 4),
                      "spread_of_a": round(spread, 4), "scrapes": scrapes, "events": events}))
    if scrapes == 0 or events == 0:
        sys.exit("nobody watched")
    if b / a >= 0.97:
        return 0
    return 2 if spread > 0.03 else 1


if __name__ == "__main__":
    sys.exit(main())
