// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include <cuda_runtime.h>

#include "device/queue_gpu.hpp"
#include "support/bench.hpp"

namespace oriel::test {
namespace {

struct Method {
  const char* name;
  PublishMethod method;
};

constexpr std::array kMethods = {
    Method{"lock per WQE", PublishMethod::lock_per_wqe},
    Method{"out of order", PublishMethod::thread},
    Method{"out of order by lanes", PublishMethod::lanes},
    Method{"out of order by warp", PublishMethod::warp},
};
constexpr std::array<std::uint32_t, 5> kWarps = {1, 4, 32, 132, 528};
constexpr std::uint32_t kSamples = 64;
constexpr std::uint32_t kRoundsMost = 1 << 14;
constexpr int kRepeats = 3;
constexpr double kSlow = 0.2;

bool is_right(const PublishResult& result) {
  return result.done && result.wrong_wqebbs == 0 && result.wrong_doorbells == 0;
}

double microseconds(std::vector<std::uint32_t>& cycles, double part, double ghz) {
  if (cycles.empty()) return 0;
  const auto at =
      cycles.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(cycles.size() - 1));
  std::nth_element(cycles.begin(), at, cycles.end());
  return *at / ghz / 1e3;
}

/// Reports the median of several runs. A short run first estimates how many rounds take
/// `least_seconds`. `seconds` receives the time of the short run.
bool measure(bench::Bench& bench, const Method& method, PublishCase at, double least_seconds,
             double ghz, double& seconds) {
  at.method = method.method;
  at.ctas = std::min(at.warps, 132u);
  at.warps = at.warps / at.ctas;
  at.rounds = 4;
  bool right = true;
  PublishResult first = run_publish(at);
  right = is_right(first);
  seconds = first.seconds;
  const double wanted = least_seconds / std::max(first.seconds / at.rounds, 1e-9);
  at.rounds = std::clamp(static_cast<std::uint32_t>(std::min(wanted, 1e6)), 4u, kRoundsMost);
  at.samples = std::min(kSamples, at.rounds);
  std::vector<PublishResult> results;
  for (int i = 0; i < kRepeats && right; ++i) {
    results.push_back(run_publish(at));
    right = is_right(results.back());
  }
  const auto by_time = [](const PublishResult& a, const PublishResult& b) {
    return a.seconds < b.seconds;
  };
  if (right)
    std::nth_element(results.begin(), results.begin() + kRepeats / 2, results.end(), by_time);
  PublishResult& median = right ? results[kRepeats / 2] : results.empty() ? first : results.back();
  const auto published = static_cast<double>(median.published);
  const auto doorbells = static_cast<double>(std::max<std::uint64_t>(median.doorbells, 1));
  bench.result(method.name,
               bench::Fields()
                   .add("warps", at.ctas * at.warps)
                   .add("queues", at.queues)
                   .add("ring", at.place == RingPlace::device ? "device" : "host")
                   .add("slow_ns", at.slow_ns)
                   .add("depth", at.depth),
               "million WQEs/s", published / median.seconds / 1e6,
               bench::Fields()
                   .add("rounds", at.rounds)
                   .add("wqes", median.published)
                   .add("seconds", median.seconds)
                   .add("wqes_per_doorbell", static_cast<double>(median.consumed) / doorbells)
                   .add("p50_us", microseconds(median.cycles, 0.5, ghz))
                   .add("p99_us", microseconds(median.cycles, 0.99, ghz))
                   .add("right", right));
  return right;
}

int run(bench::Bench& bench, double least_seconds, std::uint32_t depth) {
  int khz = 0;
  if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0) != cudaSuccess) {
    std::puts("skipped: needs a GPU");
    return 77;
  }
  bool right = true;
  for (const RingPlace place : {RingPlace::device, RingPlace::host}) {
    for (const std::uint32_t queues : {1u, 16u}) {
      for (const std::uint32_t slow_ns : {0u, 10'000u}) {
        for (const Method& method : kMethods) {
          double seconds = 0;
          for (const std::uint32_t warps : kWarps) {
            if (seconds > kSlow) break;  // more warps only take longer
            PublishCase at;
            at.place = place;
            at.queues = queues;
            at.slow_ns = slow_ns;
            at.warps = warps;
            at.depth = depth;
            right = measure(bench, method, at, least_seconds, khz / 1e6, seconds) && right;
          }
        }
      }
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace oriel::test

int main(int count, char** arguments) {
  std::int64_t least_ms = 5, depth = 4096;
  oriel::bench::Bench bench("queue_bench",
                            "measures how fast WQEs are published to queues on one GPU: by one "
                            "to 528 warps, to 1 and 16 queues,\nwith rings in device and host "
                            "memory, by each method of publishing.\nExit status: 0, 77 without a "
                            "GPU, 1 if a WQE was lost or wrong, 2 after misuse.");
  bench.flag("--least-ms", least_ms, 1, 10'000, "milliseconds that a measurement takes at least");
  bench.flag("--depth", depth, 128, 32768, "WQEBBs of a queue");
  if (const auto status = bench.parse(count, arguments)) return *status;
  try {
    return oriel::test::run(bench, static_cast<double>(least_ms) / 1e3,
                            static_cast<std::uint32_t>(depth));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "queue_bench: %s\n", error.what());
    return 1;
  }
}
