// Head slices between two shapes of page.
//
//   logical   [layer][row][plane][head] of runs; a row is the tokens that lie together on both
//             sides, a plane is K or V (or whatever else a page has more than one of)
//   a side    layer, page, row in the page, plane and head each have a stride of their own; pages
//             by a table, or dense; rows per page differ between the sides
//   segment   rows that lie in one page on either side: both tables are read once for all of them
//   a warp    takes up to UNIT words of a segment, then the piece `warp_count()` later
//
// A word is the widest size that divides every address, stride and length (16 bytes for caches as
// engines have them); which that is, is the same for all warps.

struct Address {
  u64 src, dst;
};

// Where the row `row` of the whole copy lies on one side, but for its plane and head.
__device__ __forceinline__ u64 row_address(const SliceSide& s, u32 layer, u32 row,
                                           Divisor page_rows) {
  const u32 flat = s.first_row + row;
  const u32 nth = quotient(flat, page_rows);
  const u32 within = flat - nth * page_rows.d;
  const u64 page = s.table == 0 ? nth : load<u32>(s.table + nth * 4ull);
  return s.base + layer * s.layer + page * s.page + within * s.row;
}

template <typename Word>
__device__ __forceinline__ void reslice(const SlicesArgs& a) {
  const u32 lane = lane_index();
  const u32 run_words = static_cast<u32>(a.run_bytes / sizeof(Word));
  const u32 row_words = run_words * a.heads * a.planes;
  const u32 segments = (a.rows - 1) / a.segment_rows + 1;
  const u32 parts = (row_words * a.segment_rows - 1) / UNIT + 1;
  const Divisor by_run = divisor(run_words), by_heads = divisor(a.heads);
  const Divisor by_planes = divisor(a.planes);
  const Divisor src_rows = divisor(a.src.page_rows), dst_rows = divisor(a.dst.page_rows);
  const Item step = item(warp_count(), segments, parts);
  for (Item at = item(warp_index(), segments, parts); at.layer < a.layers;
       at = after(at, step, segments, parts)) {
    const u32 first = at.page * a.segment_rows;
    // The last segment may have fewer rows.
    const u32 rows = min(a.segment_rows, a.rows - first);
    const u32 end = min(rows * row_words, (at.tile + 1) * UNIT);
    u32 word = at.tile * UNIT + lane;
    if (at.tile * UNIT >= end) continue;
    const u64 src = row_address(a.src, at.layer, first, src_rows);
    const u64 dst = row_address(a.dst, at.layer, first, dst_rows);
    const auto locate = [&](u32 nth) {
      const u32 run = quotient(nth, by_run);
      const u32 of_head = quotient(run, by_heads);
      const u32 row = quotient(of_head, by_planes);
      const u64 within = u64(nth - run * run_words) * sizeof(Word);
      const u64 head = run - of_head * a.heads, plane = of_head - row * a.planes;
      return Address{src + row * a.src.row + plane * a.src.plane + head * a.src.head + within,
                     dst + row * a.dst.row + plane * a.dst.plane + head * a.dst.head + within};
    };
#pragma unroll 1
    for (; word < end; word += BATCH * LANES) {
      Word held[BATCH];
      u64 to[BATCH];
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        if (word + k * LANES < end) {
          const Address both = locate(word + k * LANES);
          held[k] = load<Word>(both.src);
          to[k] = both.dst;
        }
      }
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        if (word + k * LANES < end) store(to[k], held[k]);
      }
    }
  }
}

KVROOM_KERNEL reslice_heads(const __grid_constant__ SlicesArgs a) {
  if (a.layers == 0 || a.rows == 0 || a.planes == 0 || a.heads == 0 || a.run_bytes == 0) return;
  switch (a.word_bytes) {
    case 16: return reslice<Word16>(a);
    case 8: return reslice<u64>(a);
    case 4: return reslice<u32>(a);
    case 2: return reslice<u16>(a);
    default: return reslice<u8>(a);
  }
}
