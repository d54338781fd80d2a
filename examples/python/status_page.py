"""A scheduler that polls: it learns how its rooms are from a page of memory, without a request.

    python3 examples/python/status_page.py

Needs numpy and a built kvroom ($KVROOM, or target/release or target/debug). It starts two daemons, runs a
few rooms between them, and watches them on the status page of the decode daemon.
"""

import os
import sys
import time

from kvroom_client import Daemon, Layout, StatusPage, describe

KV = Layout("kv", layers=2, pages=64, page_bytes=4096, page_tokens=16)
ROOMS = range(100, 116)


def main():
    path = f"/dev/shm/kvroom-status-example-{os.getpid()}"
    try:
        run(path)
    finally:
        if os.path.exists(path):
            os.unlink(path)


def run(path):
    page_flags = ("--status-page-path", path, "--status-page-rooms", "64")
    with Daemon("prefill-0") as prefill, Daemon("decode-0", *page_flags) as decode:
        for daemon in (prefill, decode):
            daemon.memory = daemon.client.create_pool(KV)
        decode.client.connect(prefill.address)
        decode.client.wait_for_peer("prefill-0")
        page = StatusPage(path)

        slots = {}
        for i, room in enumerate(ROOMS):
            started = decode.client.receive(room, "prefill-0", "kv", [i])
            # None if the page is full: such a room is asked for over HTTP.
            slots[room] = started["status_slot"]
            seen = page.read(slots[room])
            assert (seen["room"], seen["role"]) == (room, "receive"), seen
        for i, room in enumerate(ROOMS):
            if room % 4 == 3:
                decode.client.abort(room, "not needed")
                continue
            prefill.memory.cells[:, i] = room & 0xFF
            prefill.client.send(room)
            prefill.client.push(room, (0, 16), "kv", [i])
            prefill.client.finish(room, 16)

        # The loop of a scheduler: one load to see whether anything changed, one a room if so.
        waiting, loops, seen, deadline = dict(slots), 0, None, time.monotonic() + 30
        while waiting:
            assert time.monotonic() < deadline, {room: page.read(slot) for room, slot in waiting.items()}
            assert page.is_served()
            loops += 1
            if (changes := page.changes()) == seen:
                time.sleep(0.0005)  # The engine's own work.
                continue
            seen = changes
            for room, slot in list(waiting.items()):
                word = describe(page.word(slot))
                if word["released"]:
                    expected = "Requested" if room % 4 == 3 else "Done"
                    assert word["outcome"] == expected, (room, word)
                    del waiting[room]
        for i, room in enumerate(ROOMS):
            if room % 4 != 3:
                assert (decode.memory.cells[:, i] == room & 0xFF).all(), room
        print(f"{len(slots)} rooms over and their pages back, seen in {loops} loops without a request")


if __name__ == "__main__":
    sys.exit(main())
