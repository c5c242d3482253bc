// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/report/report.hpp"

#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

#include "nccl.h"

namespace oriel::perf {
namespace {

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// Formats a time with the widths of nccl-tests, on which parsers rely.
std::string format_time(double us) {
  return us >= 10'000 ? fmt::format("{:7.0f}", us)
         : us >= 100  ? fmt::format("{:7.1f}", us)
                      : fmt::format("{:7.2f}", us);
}

std::string format_wrong(const Rounds& rounds) {
  return rounds.checked ? fmt::format("{:6}", rounds.wrong) : "   N/A";
}

std::string format_version(int code) {
  return fmt::format("{}.{}.{}", code / 10'000, code / 100 % 100, code % 100);
}

template <typename Visit>
void for_each_placement(const std::vector<CaseResult>& results, Visit&& visit) {
  for (const CaseResult& result : results) {
    if (result.out_of_place) visit(result, "out of place", *result.out_of_place);
    if (result.in_place) visit(result, "in place", *result.in_place);
  }
}

}  // namespace

std::uint64_t count_wrong(const std::vector<CaseResult>& results) {
  std::uint64_t wrong = 0;
  for_each_placement(results, [&](const CaseResult&, const char*, const PlacementResult& one) {
    wrong += one.ours.wrong + (one.theirs ? one.theirs->wrong : 0);
  });
  return wrong;
}

int count_unequal(const std::vector<CaseResult>& results) {
  int unequal = 0;
  for_each_placement(results, [&](const CaseResult&, const char*, const PlacementResult& one) {
    if (!one.ours.same_bits) ++unequal;
  });
  return unequal;
}

void Table::describe(const char* who, const SetInfo& set) const {
  print_line(fmt::format("# {}: {} ({}), registration: {}, init {:.1f} ms, buffers {:.1f} ms", who,
                         set.library, format_version(set.version), set.registration, set.init_ms,
                         set.allocate_ms));
}

void Table::header(const RunInfo& info) const {
  const bool automatic = !options_.iterations && info.backend == "host";
  print_line(fmt::format(
      "# nThread {} nGpus 1 {} warmup iters: {} iters: {} agg iters: 1 validation: {} graph: {}",
      options_.threads ? ranks_ : 1, options_.size_summary, options_.warmup,
      automatic ? "auto" : std::to_string(options_.iterations.value_or(20)), options_.check ? 1 : 0,
      options_.graph_launches));
  const std::string nodes = options_.per_node > 0
                                ? fmt::format(" posing as nodes of {}", options_.per_node)
                                : (options_.threads ? " as threads of one process" : "");
  print_line(fmt::format("# {}, {} ranks{}, {} rounds, backend {}", table_name(options_.collective),
                         ranks_, nodes, options_.rounds, info.backend));
  describe(info.theirs ? "ours" : "library", info.ours);
  if (info.theirs) describe("theirs", *info.theirs);
  print_line("#\n# Using devices");
  for (std::size_t rank = 0; rank < info.ours.ranks.size(); ++rank) {
    const RankInfo& one = info.ours.ranks[rank];
    print_line(fmt::format("#  Rank {:2} Group  0 Pid {:6} on {:>10} {}", rank, one.pid, one.host,
                           one.device));
  }
  print_line("#");
  if (info.theirs)
    compared_header();
  else
    plain_header();
}

void Table::plain_header() const {
  const char* p99 = options_.percentiles ? "      p99      p99" : "";
  const char* p99_where = options_.percentiles ? "      out       in" : "";
  const auto half = [](const char* time, const char* algbw, const char* busbw, const char* wrong) {
    return fmt::format("  {:>7}  {:>6}  {:>6} {:>6}", time, algbw, busbw, wrong);
  };
  const std::string names = half("time", "algbw", "busbw", "#wrong");
  const std::string units = half("(us)", "(GB/s)", "(GB/s)", "");
  print_line(fmt::format("# {:10}  {:12}  {:>8}  {:>6}  {:>6}  {:^30}  {:^30}", "", "", "", "", "",
                         "out-of-place", "in-place"));
  print_line(fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}{}{}", "size", "count", "type",
                         "redop", "root", names, names, p99));
  print_line(fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}{}{}", "(B)", "(elements)", "", "",
                         "", units, units, p99_where));
}

void Table::compared_header() const {
  const std::string half = fmt::format("  {:>7} {:>7} {:>6} {:>15} {:>6}", "ours", "theirs",
                                       "ratio", "95 % interval", "#wrong");
  const std::string units =
      fmt::format("  {:>7} {:>7} {:>6} {:>15} {:>6}", "(us)", "(us)", "", "", "");
  print_line(fmt::format("# {:10}  {:12}  {:>8}  {:>6}  {:^45}  {:^45}", "", "", "", "",
                         "out-of-place", "in-place"));
  print_line(fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}{}{}", "size", "count", "type", "redop",
                         half, half));
  print_line(
      fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}{}{}", "(B)", "(elements)", "", "", units, units));
}

std::string Table::plain_columns(const CaseResult& result,
                                 const std::optional<PlacementResult>& one) const {
  if (!one) return fmt::format("  {:>7}  {:>6}  {:>6}  {:>5}", "N/A", "N/A", "N/A", "N/A");
  const double us = one->ours.median_us();
  return fmt::format(
      "  {}  {:6.2f}  {:6.2f} {}", format_time(us), algorithm_bandwidth(result.bytes(), us),
      bus_bandwidth(result.bytes(), us, ranks_, options_.collective), format_wrong(one->ours));
}

std::string Table::compared_columns(const std::optional<PlacementResult>& one) {
  if (!one)
    return fmt::format("  {:>7} {:>7} {:>6} {:>15} {:>6}", "N/A", "N/A", "N/A", "N/A", "N/A");
  Rounds both = one->ours;
  both.wrong += one->theirs->wrong;
  return fmt::format("  {} {} {:6.3f} [{:6.3f},{:6.3f}] {}", format_time(one->ours.median_us()),
                     format_time(one->theirs->median_us()), one->ratio->median,
                     one->ratio->interval.low, one->ratio->interval.high, format_wrong(both));
}

void Table::row(const CaseResult& result) const {
  std::string line = fmt::format("{:12}  {:12}  {:>8}  {:>6}", result.bytes(), result.count,
                                 table_name(result.type), table_name(result.op));
  if (options_.against) {
    line += compared_columns(result.out_of_place) + compared_columns(result.in_place);
  } else {
    line += fmt::format("  {:6}", has_root(options_.collective) ? options_.root : -1);
    line += plain_columns(result, result.out_of_place) + plain_columns(result, result.in_place);
    if (options_.percentiles)
      for (const auto* one : {&result.out_of_place, &result.in_place})
        line += *one ? fmt::format("  {}", format_time((*one)->ours.p99_us())) : "      N/A";
  }
  print_line(line);
}

void Table::footer(const std::vector<CaseResult>& results) const {
  double bandwidth = 0, logarithms = 0, worst = 0;
  int measured = 0;
  std::string where;
  for_each_placement(results, [&](const CaseResult& result, const char* placement,
                                  const PlacementResult& one) {
    ++measured;
    bandwidth += bus_bandwidth(result.bytes(), one.ours.median_us(), ranks_, options_.collective);
    if (!one.ratio) return;
    logarithms += std::log(one.ratio->median);
    if (one.ratio->interval.high <= worst) return;
    worst = one.ratio->interval.high;
    where = fmt::format("{} B {} {} {}", result.bytes(), table_name(result.type),
                        table_name(result.op), placement);
  });
  const std::uint64_t wrong = count_wrong(results);
  print_line(fmt::format("# Out of bounds values : {} {}", wrong, wrong == 0 ? "OK" : "FAILED"));
  print_line(fmt::format("# Avg bus bandwidth    : {:.6g}", measured ? bandwidth / measured : 0));
  if (const int unequal = count_unequal(results); unequal > 0)
    print_line(
        fmt::format("# Cases in which the ranks' results differ in bits : {} FAILED", unequal));
  if (options_.against && measured > 0) {
    print_line(fmt::format("# Ratio ours/theirs, geometric mean : {:.4f}",
                           std::exp(logarithms / measured)));
    print_line(fmt::format("# Highest upper bound of a ratio    : {:.4f} ({})", worst, where));
  }
  print_line("#");
}

Progress::Progress(std::size_t steps, std::chrono::milliseconds timeout)
    : start_(std::chrono::steady_clock::now()),
      timeout_(timeout),
      steps_(steps),
      terminal_(::isatty(STDERR_FILENO)) {}

Progress::~Progress() {
  clear();
}

void Progress::step(const std::string& doing) {
  ++done_;
  const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_);
  if (!terminal_ || elapsed < timeout_) return;
  fmt::print(stderr, "\r\033[K{:3.0f} %, {:.0f} s: {}",
             100.0 * static_cast<double>(done_) / static_cast<double>(steps_), elapsed.count(),
             doing);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace oriel::perf
