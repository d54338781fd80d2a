// Runs cases from stdin on a CPU, results to stdout. Comes after the source of the kernels.
//
//   case     u32 kernel, blocks, threads, bytes of arguments, u64 bytes of the arena;
//            the arguments; the arena; a mark for each of its bytes
//   result   u64 number of faults, u64 where the first was, 64 bytes of what it was; the arena
#pragma once

namespace host {

template <typename Args>
Args& arguments() {
  static Args args;
  return args;
}

// Lets all fibers of a block run to their end; false if they wait for each other for ever.
inline bool finish_block(unsigned threads) {
  for (;;) {
    unsigned done = 0, at_block = 0;
    bool moved = false;
    for (unsigned t = 0; t < threads; t++) {
      if (fibers[t].state == State::Runs) {
        current = threadIdx.x = t;
        swapcontext(&scheduler, &fibers[t].context);
        moved = true;
      }
      done += fibers[t].state == State::Done;
      at_block += fibers[t].state == State::WaitsForBlock;
    }
    if (done == threads) return true;
    if (at_block == threads) {
      for (unsigned t = 0; t < threads; t++) fibers[t].state = State::Runs;
      continue;
    }
    for (unsigned warp = 0; warp < threads; warp += 32) {
      unsigned at_warp = 0;
      for (unsigned t = warp; t < warp + 32; t++) at_warp += fibers[t].state == State::WaitsForWarp;
      if (at_warp != 32) continue;
      for (unsigned t = warp; t < warp + 32; t++) {
        exchanged[t] = fibers[t].value;
        fibers[t].state = State::Runs;
      }
      moved = true;
    }
    if (!moved) return false;
  }
}

inline void launch(void (*kernel)(), unsigned blocks, unsigned threads) {
  body = kernel;
  gridDim.x = blocks;
  blockDim.x = threads;
  if (fibers.size() < threads) fibers.resize(threads);
  exchanged.resize(fibers.size());
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    for (unsigned t = 0; t < threads; t++) {
      Fiber& f = fibers[t];
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.data();
      f.context.uc_stack.ss_size = f.stack.size();
      f.context.uc_link = &scheduler;
      f.state = State::Runs;
      makecontext(&f.context, enter, 0);
    }
    if (!finish_block(threads)) return arena.blame("threads wait for each other", blockIdx.x);
  }
}

inline bool read_exactly(void* to, size_t bytes) {
  return std::fread(to, 1, bytes, stdin) == bytes;
}
inline void write_all(const void* from, size_t bytes) {
  if (std::fwrite(from, 1, bytes, stdout) != bytes) std::exit(3);
}

template <typename Args, void (*KERNEL)(Args)>
bool run(unsigned blocks, unsigned threads, const std::vector<unsigned char>& args) {
  if (args.size() != sizeof(Args)) return false;
  std::memcpy(static_cast<void*>(&arguments<Args>()), args.data(), sizeof(Args));
  launch([] { KERNEL(arguments<Args>()); }, blocks, threads);
  return true;
}

}  // namespace host

int main() {
  using namespace host;
  struct Head {
    unsigned kernel, blocks, threads, args;
    unsigned long long arena;
  } head;
  static_assert(sizeof(Head) == 24, "no padding");
  while (read_exactly(&head, sizeof(head))) {
    std::vector<unsigned char> args(head.args);
    arena.bytes.resize(head.arena);
    arena.marks.resize(head.arena);
    arena.writes.assign(head.arena, 0);
    arena.fault = Fault{};
    if (head.threads == 0 || head.threads % 32 != 0) return 2;
    if (!read_exactly(args.data(), args.size()) ||
        !read_exactly(arena.bytes.data(), head.arena) ||
        !read_exactly(arena.marks.data(), head.arena)) {
      return 2;
    }
    bool known = false;
    switch (head.kernel) {
      case 0: known = run<PagesArgs, gather_pages>(head.blocks, head.threads, args); break;
      case 1: known = run<PagesArgs, scatter_pages>(head.blocks, head.threads, args); break;
      case 2: known = run<SlicesArgs, reslice_heads>(head.blocks, head.threads, args); break;
      case 3: known = run<SumArgs, checksum_pages>(head.blocks, head.threads, args); break;
    }
    if (!known) return 4;
    for (size_t i = 0; i < head.arena; i++) {
      if ((arena.marks[i] & WRITE) && arena.writes[i] == 0) arena.blame("byte never written", i);
    }
    char what[64] = {};
    std::snprintf(what, sizeof(what), "%s", arena.fault.what);
    write_all(&arena.fault.count, 8);
    write_all(&arena.fault.at, 8);
    write_all(what, sizeof(what));
    write_all(arena.bytes.data(), head.arena);
  }
  return 0;
}
