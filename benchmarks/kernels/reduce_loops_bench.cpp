// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0

// Throughput of the CPU's reduction loops beside memcpy's in the same run.
//   reduce_loops_bench [--srcs N] [--op NAME] [--type NAME] [--isa NAME] [--offset BYTES]
// One row per type and instruction set, one column per size of the destination; figures are
// destination bytes per nanosecond (GB/s), the best of several rounds. `+nt` rows store past the
// caches.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/loops/reduce_loops.hpp"

namespace {

using namespace oriel;
namespace host = oriel::kernels::host;

constexpr std::size_t kSizes[] = {64,      1 << 10, 8 << 10,  128 << 10, 1 << 20,
                                  4 << 20, 8 << 20, 16 << 20, 64 << 20};

struct Options {
  int n_srcs = 2;
  std::string op = "sum";
  std::string type;
  std::string isa;
  std::size_t offset = 0;
};

struct Buffers {
  explicit Buffers(int n_srcs) {
    for (int k = 0; k <= n_srcs; ++k) {
      owned.emplace_back(new (std::align_val_t{4096}) std::byte[kBytes]);
      std::memset(owned.back().get(), 0x38 + k, kBytes);  // no subnormal in any type
    }
  }
  static constexpr std::size_t kBytes = (std::size_t{64} << 20) + 4096;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
  };
  std::vector<std::unique_ptr<std::byte[], Free>> owned;
};

template <typename F>
double gigabytes_per_second(std::size_t bytes, const F& work) {
  using Clock = std::chrono::steady_clock;
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{4} << 20) / bytes);
  double best = 0;
  for (int round = 0; round < 7; ++round) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < repeats; ++i) {
      work();
      asm volatile("" ::: "memory");
    }
    const std::chrono::duration<double, std::nano> elapsed = Clock::now() - start;
    best = std::max(best, static_cast<double>(bytes * repeats) / elapsed.count());
  }
  return best;
}

void print_row(const std::string& name, const std::vector<double>& figures) {
  std::printf("%-18s", name.c_str());
  for (const double figure : figures) std::printf("%9.2f", figure);
  std::printf("\n");
  std::fflush(stdout);
}

void bench_copies(const Buffers& buffers) {
  std::vector<double> plain, streamed;
  std::byte* dst = buffers.owned[0].get();
  const std::byte* src = buffers.owned[1].get();
  const auto copy = host::find_copy_loop(host::detect_isa());
  for (const std::size_t bytes : kSizes) {
    plain.push_back(gigabytes_per_second(bytes, [&] { std::memcpy(dst, src, bytes); }));
    streamed.push_back(gigabytes_per_second(bytes, [&] { copy(dst, src, bytes, true); }));
  }
  print_row("memcpy", plain);
  print_row("copy loop +nt", streamed);
}

void bench_loop(const Buffers& buffers, const Options& options, DataType type, ReduceOp op,
                host::Isa isa) {
  std::byte* dst = buffers.owned[0].get() + options.offset;
  std::vector<const std::byte*> srcs;
  for (int k = 1; k <= options.n_srcs; ++k) {
    srcs.push_back(buffers.owned[static_cast<std::size_t>(k)].get() + options.offset);
  }
  const std::vector<std::byte> scalars(static_cast<std::size_t>(8 * options.n_srcs),
                                       std::byte{0x38});
  const auto loop = host::find_reduce_loop(type, op, isa);
  for (const bool streaming : {false, true}) {
    std::vector<double> figures;
    for (const std::size_t bytes : kSizes) {
      host::ReduceLoopArgs args;
      args.dsts = &dst;
      args.n_dsts = 1;
      args.srcs = srcs.data();
      args.n_srcs = options.n_srcs;
      args.count = bytes / size_of(type);
      args.n_ranks_for_avg = options.n_srcs;
      args.scalars = scalars.data();
      args.streaming = streaming;
      figures.push_back(gigabytes_per_second(bytes, [&] { loop(args); }));
    }
    print_row(std::string(name_of(type)) + " " + host::name_of(isa) + (streaming ? " +nt" : ""),
              figures);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--srcs") options.n_srcs = std::clamp(std::atoi(argv[i + 1]), 1, 64);
    if (flag == "--op") options.op = argv[i + 1];
    if (flag == "--type") options.type = argv[i + 1];
    if (flag == "--isa") options.isa = argv[i + 1];
    if (flag == "--offset")
      options.offset = static_cast<std::size_t>(std::atoi(argv[i + 1])) % 4096;
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const Buffers buffers(options.n_srcs);
  std::printf("%s of %d sources, GB/s of destination\n%-18s", options.op.c_str(), options.n_srcs,
              "bytes");
  for (const std::size_t bytes : kSizes) std::printf("%9zu", bytes);
  std::printf("\n");
  bench_copies(buffers);
  for (int t = 0; t < kDataTypeCount; ++t) {
    const auto type = static_cast<DataType>(t);
    if (!options.type.empty() && options.type != name_of(type)) continue;
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (options.op != name_of(op)) continue;
      for (int i = 0; i < host::kIsaCount; ++i) {
        const auto isa = static_cast<host::Isa>(i);
        if (!host::is_available(isa)) continue;
        if (!options.isa.empty() && options.isa != host::name_of(isa)) continue;
        bench_loop(buffers, options, type, op, isa);
      }
    }
  }
  return 0;
}
