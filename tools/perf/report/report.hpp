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

/// Prints the table on standard output: nccl-tests' columns for one library, both times and their
/// ratio for two. Flushes each line.
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

/// Counts the errors of both libraries over all cases (Rounds::wrong).
std::uint64_t count_wrong(const std::vector<CaseResult>& results);
/// Counts the cases in which ranks of `ours` got different bits. Oriel promises equal bits on all
/// ranks; the library of --against is not checked, because it may make no such promise.
int count_unequal(const std::vector<CaseResult>& results);

/// Returns all results with every round. If `error` is not empty, the document has it.
Json to_json(const Options& options, const RunInfo& info, const std::vector<CaseResult>& results,
             const std::string& error);
/// Fails if write_json() cannot write to this path: a folder, or a place without write permission.
/// Links, devices and pipes are not tried.
Status check_json_path(const std::string& path);
/// Replaces a regular file in one step; writes through a link, a device or a pipe.
Status write_json(const std::string& path, const Json& document);

/// Shows a progress line on standard error, if standard error is a terminal and the run has taken
/// longer than `timeout`.
class Progress {
 public:
  explicit Progress(std::size_t steps,
                    std::chrono::milliseconds timeout = std::chrono::seconds(10));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void step(const std::string& doing);
  /// Erases the line before other output.
  void clear();

 private:
  std::chrono::steady_clock::time_point start_;
  std::chrono::milliseconds timeout_;
  std::size_t steps_;
  std::size_t done_ = 0;
  bool terminal_;
  bool shown_ = false;
};

}  // namespace oriel::perf
