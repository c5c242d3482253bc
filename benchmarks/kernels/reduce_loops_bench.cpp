// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/loops/reduce_loops.hpp"
#include "support/bench.hpp"

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
      std::memset(owned.back().get(), 0x38 + k, kBytes);  // subnormal in no type
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

/// Runs measurements and reports their results.
struct Report {
  bench::Bench& bench;
  const Options& options;

  template <typename F>
  void add(const std::string& name, std::size_t bytes, const char* isa, bool streaming,
           const F& work) const {
    bench.result(name,
                 bench::Fields()
                     .add("bytes", bytes)
                     .add("isa", isa)
                     .add("streaming", streaming)
                     .add("sources", options.n_srcs)
                     .add("offset", options.offset),
                 "GB/s", gigabytes_per_second(bytes, work));
  }
};

void bench_copies(const Buffers& buffers, const Report& report) {
  std::byte* dst = buffers.owned[0].get();
  const std::byte* src = buffers.owned[1].get();
  const host::Isa isa = host::detect_isa();
  const auto copy = host::find_copy_loop(isa);
  for (const std::size_t bytes : kSizes) {
    report.add("memcpy", bytes, "", false, [&] { std::memcpy(dst, src, bytes); });
    report.add("copy loop", bytes, host::name_of(isa), true, [&] { copy(dst, src, bytes, true); });
  }
}

void bench_loop(const Buffers& buffers, const Report& report, DataType type, ReduceOp op,
                host::Isa isa) {
  const Options& options = report.options;
  std::byte* dst = buffers.owned[0].get() + options.offset;
  std::vector<const std::byte*> srcs;
  for (int k = 1; k <= options.n_srcs; ++k) {
    srcs.push_back(buffers.owned[static_cast<std::size_t>(k)].get() + options.offset);
  }
  const std::vector<std::byte> scalars(static_cast<std::size_t>(8 * options.n_srcs),
                                       std::byte{0x38});
  const auto loop = host::find_reduce_loop(type, op, isa);
  for (const bool streaming : {false, true}) {
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
      report.add(std::string(name_of(op)) + " " + name_of(type), bytes, host::name_of(isa),
                 streaming, [&] { loop(args); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::int64_t sources = options.n_srcs, offset = 0;
  bench::Bench bench(
      "reduce_loops_bench",
      "measures the CPU's reduction loops beside memcpy in the same run: bytes of the "
      "destination per\nnanosecond, the best of 7 rounds, by type, instruction set and "
      "size, with stores past the caches\n(streaming) and without. Exit status: 0, 2 "
      "after misuse.");
  bench.flag("--srcs", sources, 1, 64, "sources of a reduction");
  bench.flag("--op", options.op, "operation");
  bench.flag("--type", options.type, "type; without it all types");
  bench.flag("--isa", options.isa, "instruction set; without it all that are here");
  bench.flag("--offset", offset, 0, 4095, "bytes between buffers and the start of a page");
  if (const auto status = bench.parse(argc, argv)) return *status;
  options.n_srcs = static_cast<int>(sources);
  options.offset = static_cast<std::size_t>(offset);
  const Buffers buffers(options.n_srcs);
  const Report report{bench, options};
  bench_copies(buffers, report);
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
        bench_loop(buffers, report, type, op, isa);
      }
    }
  }
  return 0;
}
