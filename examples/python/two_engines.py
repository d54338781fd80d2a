"""Two engines and two daemons: pages go from one to the other, and one transfer is aborted.

    python3 examples/python/two_engines.py

Needs numpy and a built kvroom ($KVROOM, or target/release or target/debug). It starts both daemons and
the prefill engine, a process of its own, and is the decode engine itself. Exits with 0 if every byte is
right and every page has come back with a proof.
"""

import multiprocessing
import sys
import time

import numpy as np

from kvroom_client import Client, Daemon, Layout

KV = Layout("kv", layers=4, pages=64, page_bytes=4096, page_tokens=16)
SOURCE = [0, 1, 2, 3]
WANTED = [17, 3, 40, 8]
TOKENS = KV.page_tokens * len(WANTED)
DONE, CUT_SHORT, AGAIN = 42, 43, 44


def contents(room, layer, i):
    """What page `i` of a room holds in a layer: the same for both engines, and another in each room."""
    return np.random.default_rng([room, layer, i]).integers(0, 256, KV.page_bytes, dtype=np.uint8)


def fill(memory, room):
    for layer in range(KV.layers):
        for i, page in enumerate(SOURCE):
            memory.page(layer, page)[:] = contents(room, layer, i)


def prefill_engine(address, commands):
    """The prefill engine: its pool is memory of its own, passed to its daemon by descriptor."""
    client = Client(address)
    memory = client.pass_pool(KV)
    commands.send("registered")
    while (command := commands.recv()) is not None:
        room, pages = command
        fill(memory, room)
        client.send(room)
        half = pages // 2
        # As soon as pages are computed; here in two chunks.
        client.push(room, (0, half * KV.page_tokens), "kv", SOURCE[:half])
        if pages == len(SOURCE):
            client.push(room, (half * KV.page_tokens, TOKENS), "kv", SOURCE[half:])
            client.finish(room, TOKENS)
        over = client.room(room, wait="30s", released=True)
        assert over["released"], over
        # Only now are the source pages this engine's own again.
        commands.send(over)
    assert client.retire_pool("kv")["state"] == "gone"


def verify(memory, room):
    for layer in range(KV.layers):
        for i, page in enumerate(WANTED):
            assert (memory.page(layer, page) == contents(room, layer, i)).all(), f"layer {layer}, page {page}"


def main():
    with Daemon("prefill-0") as prefill, Daemon("decode-0") as decode:
        here, there = multiprocessing.Pipe()
        spawn = multiprocessing.get_context("spawn")
        engine = spawn.Process(target=prefill_engine, args=(prefill.ready["http"][0], there), daemon=True)
        engine.start()
        client = decode.client
        memory = client.create_pool(KV)
        assert here.recv() == "registered"
        client.connect(prefill.address)
        client.wait_for_peer("prefill-0")

        # One transfer to its end.
        client.receive(DONE, "prefill-0", "kv", WANTED, checksum=True)
        here.send((DONE, len(SOURCE)))
        room = client.room(DONE, wait="30s", released=True)
        assert room["outcome"] == {"end": "done"} and room["released"], room
        verify(memory, DONE)
        assert here.recv()["outcome"] == {"end": "done"}
        print(f"room {DONE}: done, {len(WANTED)} pages in {KV.layers} layers verified, proofs {room['proofs']}")

        # One that is aborted half-way: the prefill engine never sends the rest.
        client.receive(CUT_SHORT, "prefill-0", "kv", WANTED)
        here.send((CUT_SHORT, len(SOURCE) // 2))
        while client.room(CUT_SHORT)["state"] == "registered":
            time.sleep(0.005)
        leased = client.pool("kv")["leased_pages"]
        assert leased == len(WANTED), leased
        begun = time.perf_counter()
        client.abort(CUT_SHORT, "the user went away")
        room = client.room(CUT_SHORT, wait="30s", released=True)
        took = time.perf_counter() - begun
        assert room["outcome"]["code"] == "Requested" and room["released"], room
        # Every leg that was ever opened has a proof that nobody writes these pages any more.
        assert room["proofs"], room
        assert client.pool("kv")["leased_pages"] == 0
        assert here.recv()["outcome"]["code"] == "Requested"
        print(f"room {CUT_SHORT}: aborted, pages back after {took * 1e3:.1f} ms, proofs {room['proofs']}")

        # So the same pages can be used at once, and nothing of the aborted transfer gets into them.
        client.receive(AGAIN, "prefill-0", "kv", WANTED)
        here.send((AGAIN, len(SOURCE)))
        room = client.room(AGAIN, wait="30s", released=True)
        assert room["outcome"] == {"end": "done"}, room
        verify(memory, AGAIN)
        here.recv()
        print(f"room {AGAIN}: done in the same pages, verified")

        here.send(None)
        engine.join(30)
        assert engine.exitcode == 0, engine.exitcode
        assert client.retire_pool("kv")["state"] == "gone"
        print("both pools are retired: every page came back")


if __name__ == "__main__":
    sys.exit(main())
