// What the kernels need of CUDA, on a CPU, with every access checked. Comes before their source.
//
// A thread is a fiber: it runs until it returns or waits for its warp (`__shfl_xor_sync`) or its
// block (`__syncthreads`). Addresses are offsets into one arena, of which each byte has a mark that
// says whether it may be read, must be written once, or is added to. The arena repeats every REPEAT
// bytes, so that a case can have strides of many gigabytes: one that is cut to 32 bits leads
// elsewhere.
#pragma once
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define KVROOM_HOST 1
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

namespace host {

constexpr unsigned long long REPEAT = (1ull << 33) + 4096;

enum Mark : unsigned char { READ = 1, WRITE = 2, ADD = 4 };

struct Fault {
  const char* what = "";
  unsigned long long at = 0, count = 0;
};

struct Arena {
  std::vector<unsigned char> bytes, marks, writes;
  Fault fault;

  void blame(const char* what, unsigned long long at) {
    if (fault.count++ == 0) fault.what = what, fault.at = at;
  }
  // The bytes at [at, at + size) if they exist and have the mark; says what is wrong if not.
  unsigned char* find(unsigned long long at, unsigned long long size, Mark mark, const char* what) {
    if (at % size != 0) blame("misaligned access", at);
    at %= REPEAT;
    if (at > bytes.size() || size > bytes.size() - at) {
      blame("outside of all memory", at);
      return nullptr;
    }
    for (unsigned long long i = at; i < at + size; i++) {
      if (!(marks[i] & mark)) {
        blame(what, i);
        return nullptr;
      }
      if (mark == WRITE && writes[i]++ != 0) blame("byte written twice", i);
    }
    return &bytes[at];
  }
};
inline Arena arena;

enum class State { Runs, WaitsForWarp, WaitsForBlock, Done };

struct Fiber {
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(128 << 10);
  State state = State::Done;
  unsigned value = 0;
};
struct Index {
  unsigned x = 0;
};
inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline std::vector<unsigned> exchanged;
inline void (*body)();
inline unsigned current = 0;

inline void wait(State state) {
  fibers[current].state = state;
  swapcontext(&fibers[current].context, &scheduler);
}
inline void enter() {
  body();
  fibers[current].state = State::Done;
}

}  // namespace host

inline host::Index threadIdx, blockIdx, blockDim, gridDim;

template <typename T>
T load(unsigned long long at) {
  T value{};
  const auto* from = host::arena.find(at, sizeof(T), host::READ, "byte read that is not named");
  if (from != nullptr) std::memcpy(&value, from, sizeof(T));
  return value;
}
template <typename T>
void store(unsigned long long at, T value) {
  auto* to = host::arena.find(at, sizeof(T), host::WRITE, "byte written that is not named");
  if (to != nullptr) std::memcpy(to, &value, sizeof(T));
}
inline void add_to(unsigned long long at, unsigned long long value) {
  auto* to = host::arena.find(at, 8, host::ADD, "sum added to a byte that is not its");
  if (to == nullptr) return;
  unsigned long long sum;
  std::memcpy(&sum, to, 8);
  sum += value;
  std::memcpy(to, &sum, 8);
}

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const auto both = (static_cast<unsigned long long>(high) << 32) | low;
  return static_cast<unsigned>(both >> (shift & 31));
}
inline void __syncthreads() { host::wait(host::State::WaitsForBlock); }
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned other) {
  if (mask != ~0u) host::arena.blame("shuffle among a part of a warp", mask);
  host::fibers[host::current].value = value;
  host::wait(host::State::WaitsForWarp);
  return host::exchanged[threadIdx.x ^ other];
}
