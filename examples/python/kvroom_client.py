"""A client of the kvroom daemon, with nothing but the standard library and numpy.

    client = Client("127.0.0.1:7480")
    pool = client.create_pool(Layout("kv", layers=4, pages=64, page_bytes=4096, page_tokens=16))
    pool.page(layer=0, page=3)[:] = 7           # the daemon maps the same memory
    client.receive(42, sender="prefill-0", pool="kv", pages=[3, 5])

What an engine has to keep to: it writes a page only while the page is its own. It lends a page to a
room (`receive`, `push`), and has it back when the room says `released`, and not when it says how the
room ended.
"""

import dataclasses
import fcntl
import http.client
import json
import mmap
import os
import pathlib
import struct
import subprocess
import sys
import time

import numpy as np


class Problem(Exception):
    """An answer that is not a success: a problem document (RFC 9457)."""

    def __init__(self, status, document):
        self.status = status
        self.code = document.get("code", "")
        self.detail = document.get("detail", "")
        super().__init__(f"{status} {self.code}: {self.detail}")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shape of a pool. Pages of two engines are paired by the pool's name."""

    name: str
    layers: int
    pages: int
    page_bytes: int
    page_tokens: int
    kind: str = "kv"
    order: str = "layers_first"

    @property
    def bytes(self):
        return self.layers * self.pages * self.page_bytes


class PoolMemory:
    """A pool's memory, mapped here as an array of bytes."""

    def __init__(self, layout, fd):
        self.layout = layout
        self.map = mmap.mmap(fd, layout.bytes)
        flat = np.frombuffer(self.map, dtype=np.uint8, count=layout.bytes)
        if layout.order == "layers_first":
            self.cells = flat.reshape(layout.layers, layout.pages, layout.page_bytes)
        else:
            by_page = flat.reshape(layout.pages, layout.layers, layout.page_bytes)
            self.cells = by_page.transpose(1, 0, 2)

    @classmethod
    def of_file(cls, layout, path):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(layout, fd)
        finally:
            os.close(fd)

    def page(self, layer, page):
        """The bytes of one page in one layer, to read and to write."""
        return self.cells[layer, page]


def sealed_memory(layout):
    """The descriptor of a memfd that nobody can make shorter: what the daemon takes by descriptor."""
    fd = os.memfd_create(f"engine:{layout.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, layout.bytes)
    # Not in the fcntl module of every version: F_ADD_SEALS; F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW.
    fcntl.fcntl(fd, getattr(fcntl, "F_ADD_SEALS", 1033), 0x1 | 0x2 | 0x4)
    return fd


class Client:
    """Talks to one daemon, over one connection that is kept."""

    def __init__(self, address, token=None):
        self.address = address
        self.token = token
        self.connection = http.client.HTTPConnection(address, timeout=90)

    def request(self, method, path, body=None):
        """The status and the JSON of the answer; raises `Problem` unless it is a success."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        text = None if body is None else json.dumps(body)
        try:
            self.connection.request(method, path, text, headers)
            answer = self.connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # A connection that was idle for long is closed. Every request may be sent twice.
            self.connection.close()
            self.connection.request(method, path, text, headers)
            answer = self.connection.getresponse()
        data = answer.read()
        document = json.loads(data) if data else {}
        if answer.status >= 400:
            raise Problem(answer.status, document)
        return answer.status, document

    # Pools

    def register(self, layout, memory, owner=None):
        body = dataclasses.asdict(layout) | {"memory": memory}
        if owner is not None:
            body["owner"] = {"pid": owner}
        return self.request("POST", "/v1/pools", body)[1]

    def create_pool(self, layout):
        """A pool in a file that the daemon makes. It ends with this process."""
        made = self.register(layout, {"create": True}, owner=os.getpid())
        return PoolMemory.of_file(layout, made["path"])

    def pass_pool(self, layout):
        """A pool in memory of this process, whose descriptor the daemon opens. It ends with this process."""
        fd = sealed_memory(layout)
        self.register(layout, {"pid": os.getpid(), "fd": fd})
        # The descriptor stays open: the same memory can be registered again when the daemon has restarted.
        memory = PoolMemory(layout, fd)
        memory.fd = fd
        return memory

    def pass_device_pool(self, layout, device, handle, bytes, offset=0, owner=None):
        """A pool in memory of a GPU that the process `owner` (this one) has allocated: `handle` are the 64 bytes of
        cuIpcGetMemHandle, `device` is a number as the daemon counts, or a UUID (GPU-...)."""
        memory = {"device": device, "handle": handle.hex(), "offset": offset, "bytes": bytes}
        return self.register(layout, {"cuda": memory}, owner=owner or os.getpid())

    def pool(self, name):
        return self.request("GET", f"/v1/pools/{name}")[1]

    def retire_pool(self, name, abort=False, wait="10s"):
        flag = "true" if abort else "false"
        return self.request("DELETE", f"/v1/pools/{name}?abort={flag}&wait={wait}")[1]

    # Peers

    def connect(self, address):
        return self.request("POST", "/v1/peers", {"address": address})[1]

    def wait_for_peer(self, name, seconds=30):
        """Until there is a session with the node of this name: what it sends is taken then."""
        deadline = time.monotonic() + seconds
        while True:
            peers = self.request("GET", "/v1/peers")[1]["peers"]
            if any(p["name"] == name and p["state"] == "up" for p in peers):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no session with {name}: {peers}")
            time.sleep(0.01)

    # Rooms

    def receive(self, room, sender, pool, pages, **more):
        body = {"role": "receive", "id": room, "from": [sender], "pages": [{"pool": pool, "pages": pages}]}
        return self.request("POST", "/v1/rooms", body | more)[1]

    def send(self, room, **more):
        return self.request("POST", "/v1/rooms", {"role": "send", "id": room} | more)[1]

    def push(self, room, tokens, pool, pages, **more):
        body = {"tokens": list(tokens), "pool": pool, "pages": pages}
        return self.request("POST", f"/v1/rooms/{room}/chunks", body | more)[1]

    def finish(self, room, total, **more):
        return self.request("POST", f"/v1/rooms/{room}/finish", {"total": total} | more)[1]

    def abort(self, room, reason):
        from urllib.parse import quote

        return self.request("DELETE", f"/v1/rooms/{room}?reason={quote(reason)}")[1]

    def room(self, room, wait=None, released=False):
        query = "" if wait is None else f"?wait={wait}" + ("&for=released" if released else "")
        return self.request("GET", f"/v1/rooms/{room}{query}")[1]


STATES = {0: "free", 1: "registered", 2: "transferring", 3: "draining", 4: "done", 5: "aborted"}
OUTCOMES = {
    0: None, 1: "Done", 2: "Requested", 3: "HandleDropped", 4: "PeerLost", 5: "PeerRestarted", 6: "SessionLost",
    7: "DeadlineExceeded", 8: "Stalled", 9: "LengthMismatch", 10: "LayoutMismatch", 11: "CoverageOverlap",
    12: "CoverageIncomplete", 13: "ChecksumMismatch", 14: "BadChunk", 15: "BadClaim", 16: "EarlyClaimExpired",
    17: "TooManyEarlyClaims", 18: "KeySpent", 19: "RoomExists", 20: "ActorPanicked", 21: "CopyFailed",
    22: "CopyRefused", 23: "RouteFenced", 24: "PoolRetired", 25: "NodeShutdown", 26: "Rejected",
    27: "LimitReached", 28: "ProtocolViolation", 29: "DeviceLost",
}


class StatusPage:
    """The daemon's status page: one word a room, read without asking anybody."""

    MAGIC = int.from_bytes(b"kvroomSP", "little")

    def __init__(self, path):
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        self.words = np.frombuffer(self.map, dtype=np.uint64)
        if int(self.words[0]) != self.MAGIC:
            raise ValueError(f"{path} is no status page, or not ready")
        version, self.slot_words = struct.unpack("<II", struct.pack("<Q", int(self.words[1])))
        if version != 1:
            raise ValueError(f"{path} is of version {version}, and this reader of version 1")
        self.slots = int(self.words[2])
        self.life = self.incarnation()

    def incarnation(self):
        return int(self.words[3]), int(self.words[4])

    def is_served(self):
        """Whether the daemon that this reader knows still writes the page, as far as it says so."""
        return int(self.words[7]) == 1 and self.incarnation() == self.life

    def changes(self):
        """Rises with each change: if it is the same, no room has changed."""
        return int(self.words[5])

    def word(self, slot):
        return int(self.words[8 + self.slot_words * slot])

    def read(self, slot):
        """One slot: its room, and how far that is. All of it belongs together."""
        at = 8 + self.slot_words * slot
        while True:
            word = int(self.words[at])
            room, second = int(self.words[at + 1]), int(self.words[at + 2])
            if word == int(self.words[at]):
                return {
                    "room": room,
                    "attempt": second & 0xFFFF_FFFF,
                    "role": {0: None, 1: "send", 2: "receive"}[second >> 32],
                    **describe(word),
                }


def describe(word):
    """What the word of a slot says."""
    return {
        "state": STATES[word & 0xFF],
        "outcome": OUTCOMES.get(word >> 8 & 0xFF, "(unknown reason)"),
        "released": bool(word >> 16 & 1),
        "number": word >> 32,
    }


class Daemon:
    """`kvroom serve` as a child of this process, ended with the `with` block."""

    def __init__(self, name, *arguments):
        self.name = name
        command = [program(), "serve", "--name", name, "--http", "127.0.0.1:0", "--node-listen", "tcp://127.0.0.1:0"]
        self.child = subprocess.Popen(command + list(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(command)} ended: {self.child.wait()}")
        self.ready = json.loads(line)
        self.client = Client(self.ready["http"][0])
        self.address = self.ready["addresses"][0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # What the daemon made in /dev/shm goes with its pools. One that ends with pools keeps their
        # memory, for the next life of it.
        try:
            for pool in self.client.request("GET", "/v1/pools")[1]["pools"]:
                self.client.retire_pool(pool["name"], abort=True)
        except (OSError, Problem):
            pass
        self.child.terminate()
        try:
            self.child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def program():
    """The daemon's program: $KVROOM, or what cargo has built last."""
    if "KVROOM" in os.environ:
        return os.environ["KVROOM"]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).parents[2] / "target"))
    built = [p for p in (target / "release/kvroom", target / "debug/kvroom") if p.exists()]
    if not built:
        sys.exit("there is no kvroom: cargo build --release --bin kvroom, or set KVROOM to its path")
    return str(max(built, key=lambda p: p.stat().st_mtime))
