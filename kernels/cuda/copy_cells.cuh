// gather_pages and scatter_pages: the same walk over cells, in two directions.
//
//   pool      [layer][page] by any strides, pages by a table  ◀──▶  staging, by any strides, dense
//   a warp    takes a tile of a cell, then the tile `warp_count()` items later, until none is left
//   a lane    has four 16-byte loads in flight before it stores
//
// The tiles of a cell are cut where the destination's address is a multiple of 16.

// Copies n bytes by the 32 lanes of a warp, with 16-byte stores wherever n leaves room for them.
__device__ __forceinline__ void warp_copy(u64 dst, u64 src, u32 n, u32 lane) {
  // Bytes before the first 16-byte word of the destination, and how far the source is off a
  // multiple of 4 there. Such a source is read in aligned 4-byte words, five for each 16 bytes, of
  // which the first begins `slip` bytes early and the last ends `over` bytes late: these must be
  // bytes of this copy.
  u32 head = (16 - static_cast<u32>(dst)) & 15;
  const u32 slip = static_cast<u32>(src + head) & 3;
  head += head < slip ? 16 : 0;
  const u32 over = slip == 0 ? 0 : 4 - slip;
  const u32 words = n < head + over ? 0 : (n - head - over) / 16;
  if (words == 0) {
#pragma unroll 1
    for (u32 i = lane; i < n; i += LANES) store(dst + i, load<u8>(src + i));
    return;
  }
  // Both are under 32 bytes: one byte a lane.
  const u32 tail = head + words * 16;
  if (lane < head) store(dst + lane, load<u8>(src + lane));
  if (lane < n - tail) store(dst + tail + lane, load<u8>(src + tail + lane));

  u64 to = dst + head + lane * 16, from = src + head + lane * 16;
  if (((src ^ dst) & 15) == 0) {
#pragma unroll 1
    for (u32 i = lane; i < words; i += BATCH * LANES) {
      Word16 held[BATCH];
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        if (i + k * LANES < words) held[k] = load<Word16>(from + k * LANES * 16);
      }
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        if (i + k * LANES < words) store(to + k * LANES * 16, held[k]);
      }
      from += BATCH * LANES * 16;
      to += BATCH * LANES * 16;
    }
    return;
  }
  from -= slip;
#pragma unroll 1
  for (u32 i = lane; i < words; i += LANES) {
    Word16 v{load<u32>(from), load<u32>(from + 4), load<u32>(from + 8), load<u32>(from + 12)};
    if (slip != 0) {
      const u32 last = load<u32>(from + 16);
      v.x = __funnelshift_r(v.x, v.y, slip * 8);
      v.y = __funnelshift_r(v.y, v.z, slip * 8);
      v.z = __funnelshift_r(v.z, v.w, slip * 8);
      v.w = __funnelshift_r(v.w, last, slip * 8);
    }
    store(to, v);
    from += LANES * 16;
    to += LANES * 16;
  }
}

template <bool GATHER>
__device__ __forceinline__ void copy_cells(const PagesArgs& a) {
  if (a.layers == 0 || a.pages == 0 || a.cell_bytes == 0) return;
  const u32 lane = lane_index();
  const u32 tiles = static_cast<u32>((a.cell_bytes + TILE - 1) / TILE);
  const Item step = item(warp_count(), a.pages, tiles);
  Item at = item(warp_index(), a.pages, tiles);
  u32 page = at.layer < a.layers ? load<u32>(a.table + at.page * 4ull) : 0;
  while (at.layer < a.layers) {
    // The next entry of the table is asked for before the copy, and used after it.
    const Item next = after(at, step, a.pages, tiles);
    const u32 next_page = next.layer < a.layers ? load<u32>(a.table + next.page * 4ull) : 0;
    const u64 paged = a.pool + at.layer * a.pool_layer + page * a.pool_page;
    const u64 dense = a.staging + at.layer * a.staging_layer + at.page * a.staging_page;
    const u64 src = GATHER ? paged : dense;
    const u64 dst = GATHER ? dense : paged;
    const u64 shift = dst & 15;
    const u64 from = at.tile == 0 ? 0 : u64(at.tile) * TILE - shift;
    const u64 to = at.tile + 1 == tiles ? a.cell_bytes : u64(at.tile + 1) * TILE - shift;
    warp_copy(dst + from, src + from, static_cast<u32>(to - from), lane);
    at = next;
    page = next_page;
  }
}
