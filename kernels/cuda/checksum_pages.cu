// The sum over cells of CRC32C(pool, layer, page, bytes): the 32 lanes of a warp share a cell.
//
//   word      0  1  2 … 31 | 32 33 … 63 | …     16 bytes each, at addresses that divide by 16
//   lane      0  1  2 … 31 |  0  1 … 31 | …     so that a warp reads 512 bytes together
//
// A CRC register is a polynomial over GF(2) modulo P, and a byte that follows multiplies it by x^8.
// So the register is a sum (xor) of what each byte adds: the byte times x^8 for each byte from it
// to the end. A lane takes every 32nd word; one step multiplies by x^4096 and adds 16 bytes, by 16
// lookups in tables that have the multiplication in them. Where a lane would multiply too far, it
// divides at the end (x has an inverse modulo P). Zeros before the first byte add nothing, so cells
// that do not begin at a multiple of 16, or do not have 32 words in each round, are filled up with
// zeros in front; zeros behind the last byte are divided away. The name (pool, layer, page) is
// added as if it stood in front, by constants that depend on the cell's length only and come with
// the arguments.
//
// Registers are bit-reflected: the highest bit is x^0.

enum : u32 {
  POLYNOMIAL = 0x82f63b78u,
  // x to the power of 8 * (512 - 15): what the last byte of a word is multiplied by in one step.
  STEP_OF_LAST_BYTE = 0x8b45843au,
};

__device__ __forceinline__ u32 times_x(u32 a) { return (a >> 1) ^ (a & 1 ? u32(POLYNOMIAL) : 0); }

__device__ __forceinline__ u32 times(u32 a, u32 b) {
  u32 product = 0;
#pragma unroll 8
  for (u32 bit = 0; bit < 32; bit++) {
    product ^= b & (0x80000000u >> bit) ? a : 0;
    a = times_x(a);
  }
  return product;
}

// Word `nth` of a cell that covers [from, to) and whose first word begins at `base`; what is not in
// the cell is zero and is not touched.
__device__ __forceinline__ Word16 cell_word(u64 base, u64 nth, u64 from, u64 to) {
  const u64 at = base + nth * 16;
  if (at >= from && at + 16 <= to) return load<Word16>(at);
  u64 low = 0, high = 0;
#pragma unroll 1
  for (u32 k = 16; k-- > 0;) {
    const u8 byte = at + k >= from && at + k < to ? load<u8>(at + k) : u8(0);
    high = high << 8 | low >> 56;
    low = low << 8 | byte;
  }
  return Word16{u32(low), u32(low >> 32), u32(high), u32(high >> 32)};
}

__device__ __forceinline__ u32 four_lookups(const u32 (*table)[256], u32 bytes) {
  return table[0][bytes & 255] ^ table[1][bytes >> 8 & 255] ^ table[2][bytes >> 16 & 255] ^
         table[3][bytes >> 24];
}

KVROOM_KERNEL checksum_pages(const __grid_constant__ SumArgs a) {
  // x to the power of -8, -16, -32, -64.
  constexpr u32 back_bytes[4] = {0xfde39562u, 0xbef0965eu, 0xd610d67eu, 0xe67cce65u};
  // x to the power of -128, -256, -512, -1024, -2048.
  constexpr u32 back_words[5] = {0xa268b79eu, 0x134fb088u, 0x32998d96u, 0xcedac2ccu, 0x70118575u};
  // What byte k of a word, with this value, adds to the register after one step.
  __shared__ u32 table[16][256];
  for (u32 value = threadIdx.x; value < 256; value += blockDim.x) {
    u32 entry = times(value, STEP_OF_LAST_BYTE);
    for (u32 k = 16; k-- > 0;) {
      table[k][value] = entry;
      for (u32 bit = 0; bit < 8; bit++) entry = times_x(entry);
    }
  }
  __syncthreads();
  if (a.layers == 0 || a.pages == 0) return;

  const u32 lane = lane_index();
  // After its last step a lane is multiplied for `lane` words too many.
  u32 back = 0x80000000u;
#pragma unroll
  for (u32 bit = 0; bit < 5; bit++) {
    if (lane >> bit & 1) back = times(back, back_words[bit]);
  }
  u64 sum = 0;
  const Item step = item(warp_count(), a.pages, 1);
  for (Item at = item(warp_index(), a.pages, 1); at.layer < a.layers;
       at = after(at, step, a.pages, 1)) {
    const u32 page = a.table == 0 ? at.page : load<u32>(a.table + at.page * 4ull);
    const u64 from = a.pool + at.layer * a.layer + page * a.page;
    const u64 to = from + a.cell_bytes;
    const u64 base = from & ~15ull;
    const u64 words = (to - base + 15) / 16;
    const u64 rounds = (words + LANES - 1) / LANES;
    // Words before the first one are zeros.
    const u64 zeros = rounds * LANES - words;
    u32 state = 0;
    for (u64 round = 0; round < rounds; round += BATCH) {
      Word16 held[BATCH];
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        const u64 nth = (round + k) * LANES + lane;
        held[k] = Word16{0, 0, 0, 0};
        if (nth >= zeros && round + k < rounds) held[k] = cell_word(base, nth - zeros, from, to);
      }
#pragma unroll
      for (u32 k = 0; k < BATCH; k++) {
        if (round + k < rounds) {
          state = four_lookups(table, held[k].x ^ state) ^ four_lookups(table + 4, held[k].y) ^
                  four_lookups(table + 8, held[k].z) ^ four_lookups(table + 12, held[k].w);
        }
      }
    }
    state = times(state, back);
    // Lane 0 adds the page to the name, lane 1 the layer.
    u32 name = 0;
    if (lane < 2) {
      name = lane == 0 ? times(a.first_page + at.page, a.page_factor)
                       : times(a.first_layer + at.layer, a.layer_factor);
    }
#pragma unroll
    for (u32 other = 1; other < LANES; other *= 2) {
      state ^= __shfl_xor_sync(~0u, state, other);
      name ^= __shfl_xor_sync(~0u, name, other);
    }
    const u32 filled = static_cast<u32>(base + words * 16 - to);
#pragma unroll
    for (u32 bit = 0; bit < 4; bit++) {
      if (filled >> bit & 1) state = times(state, back_bytes[bit]);
    }
    sum += state ^ name ^ a.seed;
  }
  if (lane == 0 && sum != 0) add_to(a.sum, sum);
}
