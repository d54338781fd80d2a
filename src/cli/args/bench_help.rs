//! What the help of `kvroom bench` says below its options, and so what the keys of `--json` mean.

pub(super) const AFTER: &str = "\
Every bench prints its result as a table, or with --json as one JSON object on one line.
A bar that is asked for with --require-... and not reached gives exit code 3; the result is
printed all the same.

With --fabric tcp the two nodes are joined by sockets on this host, 127.0.0.1 or a Unix socket; with
--fabric shm by such a socket too, but their pools are shared memory that the sender writes into.
With --processes 2 the sending one is a process of its own. Every report then says so: fabric (the
one that the nodes took; a bench fails if it is not the one that was asked for), processes (1 | 2),
transport (local | tcp | unix), and of data connections: connections, congestion (as the kernel
names it), payload_crc, all null where there are none, spin_us (see --spin-us; null for the
library's default) and drive (whether the engines drove their shards, see --drive).

bench compare runs the benches of other programs too; see its own help.";

pub(super) const TRANSFER_AFTER: &str = "\
Built-in workloads (layers x pages x page size):
  a_32x64x16K  b_32x512x16K  c_1x16384x4K  d_1x1x256M  tiny_1x1x16K  many_8x16K

A file of workloads is JSON:
  {\"workloads\": [{\"name\": \"mine\", \"layers\": 32, \"pages\": 64, \"page_bytes\": 16384,
                  \"pool_pages\": 128, \"seed\": 1}]}
Each side has a pool of layers x pool_pages pages; the request takes `pages` of them in an order
that follows from `seed`, another one on each side, the same in every layer.

Each repetition moves the whole request through a room and then copies the same pages of two plain
buffers with one thread (memcpy). With --fabric local and shm it then goes on with the best copies
that this processor is known to have, each behind a room of its own: memcpy, streaming stores, and
streaming stores that prefetch the next page, between two more pools of the same kind (for shm
shared mappings of a memfd), with as many threads as lanes. The kind of copy with the best median is
the yardstick one_copy; ratio_one_copy is the median of the ratios of each of its copies to the room
before it. The clock runs from the receiver's start to its outcome; over sockets the
sender has started, pushed and finished before. With --fabric tcp each repetition also moves the
same pages between plain buffers by raw TCP, in turns with the rooms: as many threads on each side
as there are connections, in as many processes as the nodes, with the same congestion control,
blocking sockets, no framing, writev of 64 pages (or 1 MiB of a larger page), readv in place, one
byte to ask for it all and one byte back when all is read.

Keys of --json: fabric, processes, transport, connections, congestion, payload_crc, spin_us,
drive, workload, kind, lanes, reps, bytes, verified, GBps {min, median, max}, us {min, median, max}, memcpy_GBps (median),
ratio_memcpy (of medians), raw_GBps {min, median, max}, ratio_raw_tcp (of medians),
ratio_raw_tcp_pairs (median of the ratios of each repetition), one_copy (its kind), one_copy_GBps
{min, median, max}, ratio_one_copy. Those of raw TCP are null but for tcp, those of one_copy for it.";

pub(super) const ROOMS_AFTER: &str = "\
A whole room is a sender and a receiver, without data; its life is within the clock from the start
of both to the outcomes of both. With --transport or --processes 2 only the rate is measured. With
two processes the senders are started and waited for by commands to the other process, in batches.

Keys of --json: processes, transport, shards, reps, rooms_per_rep, rooms_per_s (median),
rooms_per_s_spread {min, median, max}, bytes_per_idle_room (the worst of all counts, null if none),
idle: list of rooms, bytes_per_room, rss_before_bytes, rss_idle_bytes, rss_after_abort_bytes.

With --idle-cpu or --soak only that is measured, and fabric, processes, transport come first:
  --idle-cpu N  rooms, seconds, nodes (how many are in this process), percent_of_core (of this
                process, while N rooms of each node wait), sender_percent_of_core (of the other
                process, null if there is none)
  --soak N      rooms, rooms_per_s, samples: list of {rooms, rss_bytes, sender_rss_bytes (null if
                there is no other process)} over N rooms that lived and ended, late_growth_bytes and
                late_growth_bytes_per_room (from the sample at half of N to the last one; of the
                process that grew more)";

pub(super) const LATENCY_AFTER: &str = "\
One room after the other moves one page of 16 KiB, class interactive. The sender's room has started,
pushed its page and finished when the clock starts with the receiver's start; it stops when the
receiver's poll() says that it has ended (done) and that its page is back (released). With --wait
the clock stops when a task that waits for the outcome goes on.

With --busy-bytes as many small rooms again are measured while a bulk room of so many bytes is under
way to the same peer: only those during which it was all the time. It is repeated as often as
needed. In turns: a tenth of the small rooms alone, a tenth beside it, and so on.

Keys of --json: fabric, processes, transport, connections, congestion, payload_crc, spin_us, drive,
lanes, reps, page_bytes, done_us and released_us, each {p50, p90, p99, max}; with --busy-bytes also (else
null) busy: bytes, rooms (bulk rooms), GBps {min, median, max} of those, done_us, released_us, and
ratio_p90 of done_us, busy to alone.";

pub(super) const ABORT_AFTER: &str = "\
The receiver aborts while at least 64 MiB of the request wait to be moved. In three that are not
timed the pages of both sides are filled with other bytes as soon as they are back, and the
receiver's looked at again 50 ms later: a byte that changed is a failure.

Keys of --json: fabric, processes, transport, connections, congestion, payload_crc, spin_us, drive,
lanes, reps, request_bytes, pages_watched (of those three), late_pages (0), queued_bytes_min (the fewest
bytes that had not landed in any repetition), abort_to_answer_us and abort_to_reusable_us, each
{p50, p90, p99, max}.";

pub(super) const RATE_AFTER: &str = "\
Rooms of a few pages each, --inflight at a time: the receiver starts one as soon as the oldest one's
pages are back. Their whole lives are within the clock, from the first start of a sender to the last
lease of both sides. The senders are started, supplied and finished by commands in batches of 256,
at most three batches ahead. The pages are those of 64 sets in rotation, cut from one shuffle of each pool, so that no two
rooms under way share a page of the destination. The first repetition warms up, and every byte of
its last 64 rooms is compared.

Keys of --json: fabric, processes, transport, connections, congestion, payload_crc, spin_us,
drive, workload, lanes, reps, rooms_per_rep, bytes (of one room), verified, rates: list of {inflight,
rooms_per_s {min, median, max}, GBps (median)}, rooms_per_s (median of the last one).";

pub(super) const COMPARE_AFTER: &str = "\
Runs the benches of other programs and those of this one in turns, and writes what came of them side
by side. The directory has to hold nixl_bench.py, mooncake_bench.py, bench_common.py,
workloads.json and the compiled liblimits.so; --python is an interpreter with NIXL installed,
--python-mooncake one with the Mooncake transfer engine. What is not given is not run, and the table
says so; so it does where a script failed, ran past its time or said nothing that can be read.

For each workload: --rounds times NIXL, kvroom shm, NIXL tcp, kvroom tcp, Mooncake. Each number is the
median of the rounds, and of a round the median of its repetitions; min and max are of the rounds.
Files: compare.md (the table), compare.svg (the chart), compare.jsonl (each line that each program
printed, with contender and round).

Of a peer counts the better of the ways in which its script posts a request (by median), from the
post to its completion; of a small page and of the rate what its receiver was notified of, where the
script measures that; of its abort, how long the call took and how many pages that were used again
right after it were overwritten.";
