"""Has the fuzzer ask about things that are there, and counts what was answered.

Random names hit nothing: of two requests one has its room, pool or peer put in place of the random one, and of
those some ask about a room or a pool that was started for them. What is put in depends on the request and on how many
there were, so that the same seed sends the same requests.
"""

import itertools
import json
import os
import urllib.error
import urllib.request
import zlib

import schemathesis

PEER = os.environ["KVROOM_FUZZ_PEER"]
ADDRESS = os.environ["KVROOM_FUZZ_ADDRESS"]
URL = os.environ["KVROOM_FUZZ_URL"]
SEEN = os.environ["KVROOM_FUZZ_SEEN"]
POOLS = ("kv", "aux", "p0", "p1", "p2", "p3")
PAGES = 64
POOL = {"layers": 2, "pages": PAGES, "page_bytes": 64, "page_tokens": 16, "memory": {"create": True}}
# More than this is not made, though the daemon would: it is the memory of the machine that tests.
MOST_BYTES = 1 << 20
# And this is more than any machine has: the daemon has to refuse it.
ABSURD_BYTES = 1 << 46

seen = {}
# How often each operation was.
asked = {}
fresh = itertools.count(1_000)


def post(path, body):
    """Makes something that the next request may be about; whether it could be made does not matter."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as refused:
        refused.close()


class Choice:
    """Numbers that depend on the request."""

    def __init__(self, case):
        parts = (case.operation.label, case.path_parameters, case.query, case.body)
        self.state = zlib.crc32(repr(parts).encode("utf-8", "backslashreplace"))

    def below(self, n):
        self.state = zlib.crc32(b"next", self.state)
        return (self.state >> 4) % n

    def of(self, all):
        return all[self.below(len(all))]


def ground_path(case, choice, new):
    for name in ("id", "name"):
        if isinstance(case.path_parameters, dict) and name in case.path_parameters:
            path = case.operation.path
            if path.startswith("/v1/rooms"):
                case.path_parameters[name] = str(choice.below(6))
                if new:
                    room = next(fresh)
                    post("/v1/rooms", {"role": "send", "id": room, "deadline_ms": 2000})
                    case.path_parameters[name] = str(room)
            elif path.startswith("/v1/pools"):
                case.path_parameters[name] = choice.of(POOLS)
                if new:
                    post("/v1/pools", {**POOL, "name": "p0"})
                    case.path_parameters[name] = "p0"
            elif path.startswith("/v1/peers"):
                case.path_parameters[name] = choice.of((PEER, PEER, "nobody"))


def ground_room(body, choice):
    body["id"] = choice.of((str, int))(choice.below(6))
    body["attempt"] = choice.below(1000)
    if body.get("role") == "receive":
        body["from"] = choice.of(([PEER], [PEER], [{"peer": PEER, "layers": [0, 2]}]))
        pages = [choice.below(PAGES) for _ in range(1 + choice.below(3))]
        body["pages"] = [{"pool": choice.of(("kv", "kv", "kv", "p0")), "pages": sorted(set(pages))}]
        if choice.below(2):
            for key in ("skip", "total", "aux", "receivers", "rank"):
                body.pop(key, None)


def ground_chunk(body, choice):
    first = choice.below(4)
    body["tokens"] = [first * 16, first * 16 + 16]
    body["pages"] = [choice.below(PAGES)]
    body["pool"] = "kv"
    body.pop("attempt", None)
    body.pop("layers", None)


def ground_finish(body, choice):
    body["total"] = 16 * choice.below(4)
    body.pop("attempt", None)
    if choice.below(2):
        body.pop("aux", None)


def bound_pool(body):
    """Never a pool that takes the memory of this machine."""
    numbers = [body.get(key) for key in ("layers", "pages", "page_bytes")]
    if all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers):
        if MOST_BYTES < numbers[0] * numbers[1] * numbers[2] < ABSURD_BYTES:
            body["layers"], body["pages"], body["page_bytes"] = 2, min(numbers[1], 256), 64


def ground_body(case, choice):
    body, path = case.body, case.operation.path
    if not isinstance(body, dict):
        return
    if path == "/v1/rooms":
        ground_room(body, choice)
    elif path.endswith("/chunks"):
        ground_chunk(body, choice)
    elif path.endswith("/finish"):
        ground_finish(body, choice)
    elif path == "/v1/peers":
        body["address"] = ADDRESS
    elif path == "/v1/aborts":
        which = choice.of(({"all": True}, {"peer": PEER}, {"room": choice.below(6)}, {"tag": "t"}))
        for key in ("all", "peer", "room", "tag"):
            body.pop(key, None)
        body.update(which)
    elif path == "/v1/pools":
        body["name"] = choice.of(POOLS[2:])
        if choice.below(2):
            body |= POOL
            body.pop("owner", None)
    elif path == "/v1/batch" and isinstance(body.get("operations"), list):
        for one in body["operations"]:
            if isinstance(one, dict) and one.get("op") == "start":
                ground_room(one, choice)
            elif isinstance(one, dict) and choice.below(2):
                one["id"] = choice.below(6)
                if one.get("op") == "chunk":
                    ground_chunk(one, choice)
                elif one.get("op") == "finish":
                    ground_finish(one, choice)


@schemathesis.hook
def before_call(context, case, kwargs):
    choice = Choice(case)
    nth = asked[case.operation.label] = asked.get(case.operation.label, -1) + 1
    if nth % 2 == 0:
        ground_path(case, choice, nth % 4 == 0)
        ground_body(case, choice)
    if case.operation.path == "/v1/pools" and isinstance(case.body, dict):
        bound_pool(case.body)


@schemathesis.hook
def after_call(context, case, response):
    key = f"{case.operation.method.upper()} {case.operation.path}"
    statuses = seen.setdefault(key, {})
    status = str(response.status_code)
    statuses[status] = statuses.get(status, 0) + 1
    if sum(statuses.values()) % 16 == 1:
        write_seen()


def write_seen():
    with open(SEEN, "w", encoding="utf-8") as file:
        json.dump(seen, file)
