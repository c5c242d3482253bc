// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "gpu/gpu_ranks.hpp"
#include "support/process_state.hpp"

/// Tests the cost and the resources of registering GPU memory through the C interface. Four ranks
/// are four processes on any number of GPUs, because kernels wait for other ranks only in a few
/// small all-reduces.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

const int kGpus = gpus();  // skips the program without a GPU
constexpr int kRanks = 4;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

/// Resources of a process. free_bytes is 0 if processes share a GPU, where it cannot be compared.
struct Held {
  std::size_t fds = 0;
  std::size_t mappings = 0;
  std::size_t free_bytes = 0;
  std::size_t address_kib = 0;  ///< address space of the whole process

  static Held now() {
    Held held;
    held.fds = count_fds();
    held.mappings = count_mappings();
    std::size_t total = 0;
    require_cuda(cudaMemGetInfo(&held.free_bytes, &total), "cudaMemGetInfo");
    if (kGpus < kRanks) held.free_bytes = 0;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmSize:", 0) == 0) {
        held.address_kib = std::strtoull(line.c_str() + 7, nullptr, 10);
      }
    }
    return held;
  }
  std::string text() const {
    return fmt::format("{} fds, {} mappings, {} MiB of the GPU free, {} MiB of addresses", fds,
                       mappings, free_bytes / kMiB, address_kib / 1024);
  }
  /// Returns whether the process holds no more than before. Allows 16 MiB of GPU memory and 64 MiB
  /// of addresses, since freed memory may stay in malloc's arenas and the driver's tables.
  bool no_more_than(const Held& before) const {
    return fds <= before.fds && mappings <= before.mappings &&
           free_bytes + 16 * kMiB >= before.free_bytes &&
           address_kib <= before.address_kib + 64 * 1024;
  }
};

/// One rank that registers windows in a few allocations.
class Registrar {
 public:
  static constexpr std::size_t kAllocations = 4;
  static constexpr std::size_t kAllocationBytes = 4 * kMiB;
  static constexpr std::size_t kPages = kAllocationBytes / 4096;

  explicit Registrar(TestRanks& test_ranks) : test_ranks_(test_ranks), gpu_(test_ranks.first()) {
    for (std::size_t i = 0; i < kAllocations; ++i) {
      allocations_.push_back(gpu_.allocate(kAllocationBytes, true));
    }
    comm_ = init_rank(test_ranks, gpu_);
  }

  /// Registers `count` windows in a group; all ranks draw the same windows.
  void register_some(std::mt19937_64& common, std::size_t count) {
    std::vector<ncclWindow_t> windows(count, nullptr);
    require(ncclGroupStart(), "ncclGroupStart");
    for (ncclWindow_t& window : windows) {
      std::byte* const base = allocations_[common() % kAllocations];
      const std::size_t first = common() % kPages;
      const std::size_t pages = 1 + common() % (kPages - first);
      require(ncclCommWindowRegister(comm_, base + first * 4096, pages * 4096, &window,
                                     NCCL_WIN_COLL_SYMMETRIC),
              "ncclCommWindowRegister");
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    for (const ncclWindow_t window : windows) {
      require(window != nullptr, "a window is null");
      live_.push_back(window);
    }
  }
  /// Deregisters windows, in this rank's own order, until `left` are left.
  void deregister_some(std::mt19937_64& own, std::size_t left) {
    while (live_.size() > left) {
      std::swap(live_[own() % live_.size()], live_.back());
      require(ncclCommWindowDeregister(comm_, live_.back()), "ncclCommWindowDeregister");
      live_.pop_back();
    }
  }
  /// Checks a small all-reduce in registrable memory, which a window may cover.
  void check_sum() {
    auto* const data = reinterpret_cast<int*>(allocations_[0]);
    const std::vector<int> mine(100, test_ranks_.first() + 1);
    gpu_.copy_in(data, mine.data(), 400);
    require(ncclAllReduce(data, data, 100, ncclInt32, ncclSum, comm_, gpu_.stream()),
            "ncclAllReduce");
    gpu_.wait(gpu_.stream(), comm_);
    std::vector<int> sums(100);
    gpu_.copy_out(sums.data(), data, 400);
    require(sums == std::vector<int>(100, kRanks * (kRanks + 1) / 2), "the sum");
  }
  void end() { require(ncclCommDestroy(comm_), "ncclCommDestroy"); }

 private:
  TestRanks& test_ranks_;
  RankGpu gpu_;
  std::vector<std::byte*> allocations_;
  ncclComm_t comm_ = nullptr;
  std::vector<ncclWindow_t> live_;
};

void churn(TestRanks& test_ranks, std::uint64_t seed, int windows) {
  std::mt19937_64 common(seed);
  std::mt19937_64 own(seed + 1 + static_cast<std::uint64_t>(test_ranks.first()));
  Registrar registrar(test_ranks);
  Held before;
  const int settled = windows / 10;
  int registered = 0;
  // Deregisters all windows on all ranks and returns this rank's resources.
  const auto quiet = [&] {
    registrar.deregister_some(own, 0);
    test_ranks.barrier();
    const Held held = Held::now();
    test_ranks.barrier();
    return held;
  };
  const auto started = std::chrono::steady_clock::now();
  while (registered < windows) {
    const std::size_t count = 1 + common() % 16;
    registrar.register_some(common, count);
    const int done = registered + static_cast<int>(count);
    if (registered < settled && done >= settled) before = quiet();
    registered = done;
    if (common() % 100 == 0) registrar.check_sum();
    // Deregisters all windows at times, so that mappings are removed and made again.
    registrar.deregister_some(own, common() % 3 == 0 ? 0 : common() % 24);
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
  const Held after = quiet();
  require(after.no_more_than(before),
          fmt::format("seed {}: after {} windows {}; after {} {}", seed, settled, before.text(),
                      registered, after.text()));
  registrar.check_sum();
  registrar.end();
  if (test_ranks.first() != 0) return;
  std::printf("%d windows in %.1f s, 4 ranks on %d GPU(s), seed %llu: %s\n", registered,
              spent.count(), kGpus, static_cast<unsigned long long>(seed), after.text().c_str());
  std::fflush(stdout);
}

TEST_CASE("10,000 windows come and go in random order on each rank and hold nothing",
          "[req:1.21]") {
  const char* given = std::getenv("ORIEL_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  const char* wanted = std::getenv("ORIEL_TEST_WINDOWS");
  const int windows = wanted != nullptr ? std::max(100, std::atoi(wanted)) : 10'000;
  check_all_ok(run_ranks(
      LaunchMode::processes, kRanks,
      [&](TestRanks& test_ranks) { churn(test_ranks, seed, windows); }, 80s));
}

/// Registers ten windows of 1 GiB, each in an allocation of its own, and times them.
void register_large(TestRanks& test_ranks) {
  RankGpu gpu(test_ranks.first());
  ncclComm_t comm = init_rank(test_ranks, gpu);
  std::vector<ncclWindow_t> windows;
  std::vector<double> milliseconds;
  for (int i = 0; i < 10; ++i) {
    std::byte* const base = gpu.allocate(kGiB, true);
    test_ranks.barrier();
    const auto started = std::chrono::steady_clock::now();
    windows.push_back(nullptr);
    require(ncclCommWindowRegister(comm, base, kGiB, &windows.back(), NCCL_WIN_COLL_SYMMETRIC),
            "ncclCommWindowRegister");
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - started;
    milliseconds.push_back(spent.count());
  }
  std::string text;
  for (const double one : milliseconds) text += fmt::format(" {:.2f}", one);
  if (test_ranks.first() == 0) {
    std::printf("1 GiB windows, 4 ranks on %d GPU(s), ms:%s\n", kGpus, text.c_str());
    std::fflush(stdout);
  }
  for (const ncclWindow_t window : windows) {
    require(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
  }
  require(ncclCommDestroy(comm), "ncclCommDestroy");
  if (kGpus < kRanks) return;  // ranks that share a GPU wait for each other's time slices
  const double slowest = *std::max_element(milliseconds.begin() + 1, milliseconds.end());
  require(slowest <= 12, fmt::format("a window took {:.2f} ms:{}", slowest, text));
}

TEST_CASE("windows 2 to 10 of 1 GiB register in at most 12 ms each", "[req:1.21]") {
  check_all_ok(run_ranks(LaunchMode::processes, kRanks, register_large, 60s));
}

}  // namespace
}  // namespace oriel::test
