// What all kernels share: the arguments, memory accesses, walks without divisions.
//
// The kernels are one source: this file, then the others (`kernels/src/cuda.rs` joins them, and
// says how they are compiled and launched). No header is included, so NVRTC needs none. With
// KVROOM_HOST the same source is compiled for a CPU, behind `host/shim.h`.
//
// Addresses are u64 and memory is only touched by `load`, `store` and `add_to`: the CPU build
// checks each byte.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Bytes of a cell that a warp copies before it goes to its next piece.
#ifndef KVROOM_TILE
#define KVROOM_TILE 8192
#endif
// Words (of the widest size that divides everything) of head slices, likewise.
#ifndef KVROOM_UNIT
#define KVROOM_UNIT 512
#endif

// Enumerators, since a `constexpr` variable would take memory of the device.
enum : u32 {
  LANES = 32,
  // Loads that a lane has in flight before its first store.
  BATCH = 4,
  TILE = KVROOM_TILE,
  UNIT = KVROOM_UNIT,
  // At most this many threads a block, and at least four blocks a multiprocessor.
  THREADS = 256,
};
static_assert(TILE % 16 == 0 && TILE >= 64, "a tile holds whole 16-byte words");
#define KVROOM_KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 4)

// ---- Arguments: `kernels/src/cuda/args.rs` has the same, field for field.

struct PagesArgs {
  u64 pool, staging, table;
  u64 cell_bytes;
  u64 pool_layer, pool_page;
  u64 staging_layer, staging_page;
  u32 layers, pages;
};
static_assert(sizeof(PagesArgs) == 72, "no padding");

struct SliceSide {
  u64 base, table;
  u64 layer, page, row, plane, head;
  u32 page_rows, first_row;
};
static_assert(sizeof(SliceSide) == 64, "no padding");

struct SlicesArgs {
  SliceSide src, dst;
  u64 run_bytes;
  u32 layers, rows, planes, heads;
  u32 segment_rows, word_bytes;
};
static_assert(sizeof(SlicesArgs) == 160, "no padding");

struct SumArgs {
  u64 pool, table, sum;
  u64 cell_bytes, layer, page;
  u32 layers, pages;
  u32 first_layer, first_page;
  u32 seed, layer_factor, page_factor, reserved;
};
static_assert(sizeof(SumArgs) == 80, "no padding");

// ---- Memory.

struct alignas(16) Word16 {
  u32 x, y, z, w;
};

#ifndef KVROOM_HOST
template <typename T>
__device__ __forceinline__ T load(u64 at);
template <>
__device__ __forceinline__ Word16 load<Word16>(u64 at) {
  Word16 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
template <>
__device__ __forceinline__ u64 load<u64>(u64 at) {
  u64 v;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(at));
  return v;
}
template <>
__device__ __forceinline__ u32 load<u32>(u64 at) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
template <>
__device__ __forceinline__ u16 load<u16>(u64 at) {
  u16 v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(at));
  return v;
}
template <>
__device__ __forceinline__ u8 load<u8>(u64 at) {
  u32 v;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(at));
  return static_cast<u8>(v);
}

__device__ __forceinline__ void store(u64 at, Word16 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store(u64 at, u64 v) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
__device__ __forceinline__ void store(u64 at, u32 v) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void store(u64 at, u16 v) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(at), "h"(v) : "memory");
}
__device__ __forceinline__ void store(u64 at, u8 v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(at), "r"(static_cast<u32>(v)) : "memory");
}
__device__ __forceinline__ void add_to(u64 at, u64 v) {
  atomicAdd(reinterpret_cast<u64*>(at), v);
}
#endif

// ---- Who am I.

__device__ __forceinline__ u32 lane_index() { return threadIdx.x % LANES; }
__device__ __forceinline__ u32 warp_index() {
  return blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
}
__device__ __forceinline__ u32 warp_count() { return gridDim.x * (blockDim.x / LANES); }

// ---- Walks.

// Item number `n` of (layer, page, tile), tiles fastest, as three digits. A warp goes from its item
// to the one `warp_count()` later by adding digits with carries; every count is under 2^31.
struct Item {
  u32 layer, page, tile;
};

__device__ __forceinline__ Item item(u32 n, u32 pages, u32 tiles) {
  const u32 rest = n / tiles;
  return Item{rest / pages, rest % pages, n % tiles};
}

__device__ __forceinline__ Item after(Item at, Item step, u32 pages, u32 tiles) {
  u32 tile = at.tile + step.tile;
  u32 carry = tile >= tiles;
  tile -= carry ? tiles : 0;
  u32 page = at.page + step.page + carry;
  carry = page >= pages;
  page -= carry ? pages : 0;
  return Item{at.layer + step.layer + carry, page, tile};
}

// Division by a number that is known early, as one multiplication: exact for all 32-bit n and d > 0
// (Lemire, Kaser, Kurz, "Faster remainder by direct computation", 2019).
struct Divisor {
  u64 inverse;
  u32 d;
};

__device__ __forceinline__ Divisor divisor(u32 d) {
  // ceil(2^64 / d); for 1 that is 0, which `quotient` knows.
  return Divisor{~0ull / d + 1, d};
}

__device__ __forceinline__ u32 quotient(u32 n, Divisor by) {
  return by.inverse == 0 ? n : static_cast<u32>(__umul64hi(by.inverse, n));
}
