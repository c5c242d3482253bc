// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "perf/channel.hpp"
#include "perf/options.hpp"
#include "perf/report/results.hpp"

namespace oriel::perf {

/// The table on standard output: nccl-tests' columns for one library, both times and their ratio
/// for two. Lines are flushed as they are made.
class Table {
 public:
  Table(const Options& options, int ranks) : options_(options), ranks_(ranks) {}
  void header(const RunInfo& info) const;
  void row(const CaseResult& result) const;
  void footer(const std::vector<CaseResult>& results) const;

 private:
  void describe(const char* who, const SetInfo& set) const;
  void plain_header() const;
  void compared_header() const;
  std::string plain_columns(const CaseResult& result,
                            const std::optional<PlacementResult>& one) const;
  static std::string compared_columns(const std::optional<PlacementResult>& one);

  const Options& options_;
  int ranks_;
};

/// Wrong elements of both libraries over all cases.
std::uint64_t count_wrong(const std::vector<CaseResult>& results);
/// Cases in which the ranks of the library under test hold different bits, which Oriel promises
/// they never do. An opponent may make no such promise.
int count_unequal(const std::vector<CaseResult>& results);

/// Everything that was measured, with every round.
Json to_json(const Options& options, const RunInfo& info, const std::vector<CaseResult>& results,
             const std::string& error);
/// Whether write_json() can be expected to put a file there.
Status check_json_path(const std::string& path);
/// Replaces the file in one step.
Status write_json(const std::string& path, const Json& document);

/// A line on standard error that says how far a run has come, if that is a terminal and the run has
/// taken longer than `patience`.
class Progress {
 public:
  explicit Progress(std::size_t steps,
                    std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void step(const std::string& doing);
  /// Takes the line away before something else is printed.
  void clear();

 private:
  std::chrono::steady_clock::time_point start_;
  std::chrono::milliseconds patience_;
  std::size_t steps_;
  std::size_t done_ = 0;
  bool terminal_;
  bool shown_ = false;
};

}  // namespace oriel::perf
