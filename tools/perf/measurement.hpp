// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "perf/options.hpp"
#include "perf/rank_set.hpp"
#include "perf/report/report.hpp"
#include "perf/report/results.hpp"

namespace oriel::perf {

/// One measurement from start to end. Requests rounds from one or two sets of ranks, in turn and
/// never both at once, then collects, prints and saves the results.
class Session {
 public:
  Session(const Options& options, RankSet ours, std::optional<RankSet> theirs);

  /// Measures all cases. After an error the JSON file is still written, with the results so far and
  /// the error.
  Status run();
  /// Measures on demand: for each line "BYTES CALLS" on standard input, prints "MICROSECONDS WRONG"
  /// on standard output. Returns at the end of the input.
  Status serve();

  bool anything_wrong() const { return count_wrong(results_) > 0 || count_unequal(results_) > 0; }

 private:
  struct Side {
    RankSet ranks;
    SetInfo info;
  };
  struct Plan {
    DataType type = DataType::f32;
    ReduceOp op = ReduceOp::sum;
    std::size_t count = 0;
    Placement placement = Placement::out_of_place;
    int calls = 1;
    int sets = 1;
    int blocks = 1;  ///< blocks of `count` elements in the larger buffer
    std::size_t bytes() const { return count * size_of(type) * static_cast<std::size_t>(blocks); }
    std::string text() const;
  };

  Status start();
  Status start_side(Side& side, const Contestant& contestant, std::size_t arena_bytes);
  std::vector<Plan> plans() const;
  std::size_t arena_bytes(const std::vector<Plan>& plans) const;
  Status measure_all(const std::vector<Plan>& plans);
  Status measure(Plan plan);
  Status prepare(Plan& plan);
  Status prepare_side(Side& side, const Plan& plan);
  Result<double> warm(Side& side, const Plan& plan);
  Status round(Side& side, const Plan& plan, int number, double jitter_us, Rounds& rounds);
  Status check(Side& side, const Plan& plan, int number, std::uint64_t seed, Rounds& rounds);
  CaseResult& case_of(const Plan& plan);
  std::vector<Side*> sides();

  const Options& options_;
  Side ours_;
  std::optional<Side> theirs_;
  RunInfo info_;
  std::vector<CaseResult> results_;
  std::optional<Progress> progress_;
};

}  // namespace oriel::perf
