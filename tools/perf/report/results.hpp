// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oriel/types.hpp"

#include "perf/options.hpp"
#include "perf/report/statistics.hpp"

namespace oriel::perf {

/// Rounds of one case with one library. Times are the slowest rank's microseconds per call.
struct Rounds {
  std::vector<double> us;
  std::optional<double> jittered_us;  ///< time of the pass with random delays, delays included
  std::uint64_t wrong = 0;            ///< sum of the three counts below, over ranks and checks
  std::uint64_t wrong_outputs = 0, changed_inputs = 0, written_past_end = 0;
  std::uint64_t first_wrong = UINT64_MAX;
  bool checked = false;
  bool same_bits = true;  ///< every rank got the same bits in every check

  double median_us() const { return median(us); }
  double p99_us() const { return percentile(us, 0.99); }
};

struct Ratio {
  double median = 0;  ///< median over the rounds of ours / theirs
  Interval interval;
};

struct PlacementResult {
  Rounds ours;
  std::optional<Rounds> theirs;
  std::optional<Ratio> ratio;
};

struct CaseResult {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  int calls = 0;  ///< calls in one round, or in one graph launch
  int sets = 0;
  std::optional<PlacementResult> out_of_place;
  std::optional<PlacementResult> in_place;

  int blocks = 1;  ///< blocks of `count` elements in the larger buffer
  std::size_t bytes() const { return count * size_of(type) * static_cast<std::size_t>(blocks); }
};

/// Process, host and device of one rank, from its first message.
struct RankInfo {
  int pid = 0;
  std::string host;
  std::string device;
};
struct SetInfo {
  std::string library;
  int version = 0;
  std::string registration;
  std::vector<RankInfo> ranks;
  double init_ms = 0;      ///< communicator creation on the slowest rank
  double allocate_ms = 0;  ///< allocation and registration of buffers on the slowest rank
};
struct RunInfo {
  std::string backend;
  SetInfo ours;
  std::optional<SetInfo> theirs;
};

/// Returns bytes over time in GB/s (10^9 bytes per second).
inline double algorithm_bandwidth(std::size_t bytes, double us) {
  return us > 0 ? static_cast<double>(bytes) / us / 1e3 : 0;
}
/// Returns the bus bandwidth of nccl-tests in GB/s, the least that each link must carry. An
/// all-reduce counts 2 (n - 1) / n times its size. A collective with a block per rank counts half
/// of that factor, and any other collective counts its size.
inline double bus_bandwidth(std::size_t bytes, double us, int ranks,
                            Collective collective = Collective::all_reduce) {
  const double bandwidth = algorithm_bandwidth(bytes, us);
  if (collective != Collective::all_reduce && blocks_of(collective, 2) == 1) return bandwidth;
  const int trips = collective == Collective::all_reduce ? 2 : 1;
  return bandwidth * trips * (ranks - 1) / ranks;
}

}  // namespace oriel::perf
