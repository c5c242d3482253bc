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

/// One library's rounds of one case. Times are microseconds per call, of the slowest rank.
struct Rounds {
  std::vector<double> us;
  std::optional<double> jittered_us;  ///< of the pass with random delays, which it includes
  std::uint64_t wrong = 0;            ///< over all ranks and checked calls
  std::uint64_t wrong_outputs = 0, changed_inputs = 0, written_past_end = 0;
  std::uint64_t first_wrong = UINT64_MAX;
  bool checked = false;
  bool same_bits = true;  ///< whether every rank got the same bits, in every checked call

  double median_us() const { return median(us); }
  double p99_us() const { return percentile(us, 0.99); }
};

struct Ratio {
  double median = 0;  ///< of ours / theirs, round by round
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
  int calls = 0;  ///< in one round (of one graph launch)
  int sets = 0;
  std::optional<PlacementResult> out_of_place;
  std::optional<PlacementResult> in_place;

  int blocks = 1;  ///< of `count` elements, in the larger buffer
  std::size_t bytes() const { return count * size_of(type) * static_cast<std::size_t>(blocks); }
};

/// What a set of ranks said about itself.
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
  double init_ms = 0;      ///< of the slowest rank
  double allocate_ms = 0;  ///< buffers and their registration, the same
};
struct RunInfo {
  std::string backend;
  SetInfo ours;
  std::optional<SetInfo> theirs;
};

/// Bytes over time, in GB/s of 10^9.
inline double algorithm_bandwidth(std::size_t bytes, double us) {
  return us > 0 ? static_cast<double>(bytes) / us / 1e3 : 0;
}
/// Returns what each link must carry at least, by the convention of nccl-tests: an all-reduce moves
/// 2 (n - 1) / n times its size, a collective with blocks for each rank half of that, and the
/// others all of their size.
inline double bus_bandwidth(std::size_t bytes, double us, int ranks,
                            Collective collective = Collective::all_reduce) {
  const double bandwidth = algorithm_bandwidth(bytes, us);
  if (collective != Collective::all_reduce && blocks_of(collective, 2) == 1) return bandwidth;
  const int trips = collective == Collective::all_reduce ? 2 : 1;
  return bandwidth * trips * (ranks - 1) / ranks;
}

}  // namespace oriel::perf
