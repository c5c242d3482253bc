// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/options.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/try.hpp"
#include "common/command_line.hpp"

namespace oriel::perf {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 44;
constexpr std::size_t kRotationBytes = std::size_t{128} << 20;
constexpr int kMostSets = 8;

struct Named {
  std::string_view table;  // name in nccl-tests
  std::string_view ours;
};
// In the order of DataType and of ReduceOp.
constexpr std::array<Named, kDataTypeCount> kTypes{{{"int8", "i8"},
                                                    {"uint8", "u8"},
                                                    {"int32", "i32"},
                                                    {"uint32", "u32"},
                                                    {"int64", "i64"},
                                                    {"uint64", "u64"},
                                                    {"half", "f16"},
                                                    {"float", "f32"},
                                                    {"double", "f64"},
                                                    {"bfloat16", "bf16"},
                                                    {"f8e4m3", "e4m3"},
                                                    {"f8e5m2", "e5m2"}}};
constexpr std::array<Named, kReduceOpCount> kOps{{{"sum", "sum"},
                                                  {"prod", "prod"},
                                                  {"max", "max"},
                                                  {"min", "min"},
                                                  {"avg", "avg"},
                                                  {"mulsum", "premul_sum"}}};
// In the order of Collective.
constexpr std::array<std::string_view, kernels::kCollectiveCount + 1> kCollectives{
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
    "alltoall",   "gather",     "scatter",        "sendrecv"};
constexpr std::array<std::string_view, 5> kRegistrations{"none", "local", "both", "in", "out"};

template <std::size_t kCount>
std::optional<std::size_t> find_name(const std::array<Named, kCount>& names,
                                     std::string_view name) {
  for (std::size_t i = 0; i < kCount; ++i)
    if (names[i].table == name || names[i].ours == name) return i;
  return std::nullopt;
}
template <std::size_t kCount>
std::string list_names(const std::array<Named, kCount>& names) {
  std::string list;
  for (const Named& one : names) list += fmt::format("{}{}", list.empty() ? "" : ", ", one.table);
  return list + ", all";
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  for (std::size_t comma; (comma = text.find(',', start)) != std::string::npos; start = comma + 1)
    parts.push_back(text.substr(start, comma - start));
  parts.push_back(text.substr(start));
  return parts;
}

Error usage_error(std::string message) {
  return Error(ErrorCode::invalid_argument, std::move(message));
}

// Option values as CLI11 stores them, before understand() converts them.
struct Raw {
  std::string collective;
  std::string begin = "8", end = "64M", step, factor;
  std::string sizes, counts, type = "float", op = "sum";
  int iterations = 0;
  int check = 1;
  int registration_number = -1;
  std::string registration, against_registration, backend = "auto", against;
  std::string library;
  std::vector<std::string> environment, against_environment;
  bool only_in = false, only_out = false, both = false;
  int timeout_s = 120;
  int blocking = 0;
};

Result<Registration> parse_registration(std::string_view name) {
  const auto found = std::find(kRegistrations.begin(), kRegistrations.end(), name);
  if (found == kRegistrations.end())
    return usage_error(fmt::format("--register {}: not one of none, local, both, in, out", name));
  return static_cast<Registration>(found - kRegistrations.begin());
}

Status read_environment(const std::vector<std::string>& given, Contestant& contestant) {
  for (const std::string& one : given) {
    const std::size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0)
      return usage_error(fmt::format("'{}' is not of the form NAME=VALUE", one));
    contestant.environment.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  return {};
}

Result<std::vector<std::size_t>> parse_list(const std::string& text) {
  std::vector<std::size_t> list;
  for (const std::string& part : split(text)) {
    ORIEL_TRY(const std::size_t value, parse_bytes(part));
    list.push_back(value);
  }
  return list;
}

Status make_range(const Raw& raw, Options& options) {
  ORIEL_TRY(const std::size_t begin, parse_bytes(raw.begin));
  ORIEL_TRY(const std::size_t end, parse_bytes(raw.end));
  if (begin > end) return usage_error(fmt::format("-b {} is above -e {}", raw.begin, raw.end));
  std::size_t step = 0;
  double factor = 2;
  if (!raw.step.empty()) {
    ORIEL_TRY(step, parse_bytes(raw.step));
  }
  if (!raw.factor.empty()) {
    char* rest = nullptr;
    factor = std::strtod(raw.factor.c_str(), &rest);
    if (*rest != '\0' || !(factor > 1))
      return usage_error(fmt::format("-f {}: not a factor above 1", raw.factor));
  } else if (!raw.step.empty()) {
    factor = 1;
    if (step == 0) return usage_error("-i 0: the step must be at least one byte");
  }
  for (std::size_t size = begin; size <= end;) {
    options.sizes.push_back(size);
    const std::size_t next =
        factor > 1 ? static_cast<std::size_t>(static_cast<double>(size) * factor) : size + step;
    size = std::max(next, size + 1);
    if (options.sizes.size() > 10'000) return usage_error("more than 10000 sizes");
  }
  options.size_summary =
      fmt::format("minBytes {} maxBytes {} step: {}", begin, end,
                  factor > 1 ? fmt::format("{}(factor)", factor) : fmt::format("{}(bytes)", step));
  return {};
}

Result<Collective> parse_collective(const std::string& name) {
  const auto found = std::find(kCollectives.begin(), kCollectives.end(), std::string_view(name));
  if (found == kCollectives.end()) {
    return usage_error(fmt::format("'{}' is no collective of this tool; it measures: {}", name,
                                   fmt::join(kCollectives, ", ")));
  }
  return static_cast<Collective>(found - kCollectives.begin());
}

Status choose_placements(const Raw& raw, Options& options) {
  if (!works_in_place(options.collective)) {
    if (raw.only_in) {
      return usage_error(
          fmt::format("--in-place: {} does not work in place", table_name(options.collective)));
    }
    options.placements.push_back(Placement::out_of_place);
    return {};
  }
  if (!raw.only_in || raw.both) options.placements.push_back(Placement::out_of_place);
  if (!raw.only_out || raw.both) options.placements.push_back(Placement::in_place);
  return {};
}

Status understand_work(const Raw& raw, Options& options) {
  ORIEL_TRY(options.collective, parse_collective(raw.collective));
  if (!raw.sizes.empty()) {
    ORIEL_TRY(options.sizes, parse_list(raw.sizes));
    options.size_summary = "sizes: " + raw.sizes;
  }
  if (!raw.counts.empty()) {
    ORIEL_TRY(options.counts, parse_list(raw.counts));
    options.size_summary += (raw.sizes.empty() ? "counts: " : " counts: ") + raw.counts;
  }
  if (raw.sizes.empty() && raw.counts.empty()) ORIEL_CHECK(make_range(raw, options));
  for (const std::string& name : split(raw.type)) {
    if (name == "all") {
      for (int i = 0; i < kDataTypeCount; ++i) options.types.push_back(static_cast<DataType>(i));
      continue;
    }
    ORIEL_TRY(const DataType type, parse_type(name));
    options.types.push_back(type);
  }
  for (const std::string& name : split(raw.op)) {
    if (name == "all") {
      for (int i = 0; i < kReduceOpCount; ++i) options.ops.push_back(static_cast<ReduceOp>(i));
      continue;
    }
    ORIEL_TRY(const ReduceOp op, parse_op(name));
    options.ops.push_back(op);
  }
  return choose_placements(raw, options);
}

std::string library_beside_this_program() {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (self.parent_path().parent_path() / "lib" / "libnccl.so.2").string();
}

Status understand(const Raw& raw, Options& options) {
  ORIEL_CHECK(understand_work(raw, options));
  if (raw.iterations > 0) options.iterations = raw.iterations;
  options.check = raw.check != 0;
  options.blocking_calls = raw.blocking != 0;
  options.timeout = std::chrono::seconds(raw.timeout_s);
  options.ours.library = raw.library.empty() ? library_beside_this_program() : raw.library;
  options.ours.registration = Registration::both;
  if (raw.registration_number >= 0)
    options.ours.registration = raw.registration_number == 0   ? Registration::none
                                : raw.registration_number == 1 ? Registration::local
                                                               : Registration::both;
  if (!raw.registration.empty()) {
    ORIEL_TRY(options.ours.registration, parse_registration(raw.registration));
  }
  ORIEL_CHECK(read_environment(raw.environment, options.ours));
  if (!raw.against.empty()) {
    options.against = Contestant{raw.against, options.ours.registration, {}};
    if (!raw.against_registration.empty()) {
      ORIEL_TRY(options.against->registration, parse_registration(raw.against_registration));
    }
    ORIEL_CHECK(read_environment(raw.against_environment, *options.against));
  }
  if (options.rounds == 0) options.rounds = options.against ? 9 : 5;
  if (options.threads && options.per_node > 0)
    return usage_error("--threads with --per-node: threads of one process are of one node");
  if (raw.backend == "cuda") options.backend = BackendKind::cuda;
  if (raw.backend == "host") options.backend = BackendKind::host;
  return {};
}

void declare_work(CLI::App& app, Raw& raw, Options& options) {
  app.add_option("collective", raw.collective, fmt::format("{}", fmt::join(kCollectives, ", ")))
      ->required();
  app.add_option("-b,--minbytes", raw.begin, "first size, such as 8, 4K, 1M")
      ->capture_default_str();
  app.add_option("-e,--maxbytes", raw.end, "last size")->capture_default_str();
  app.add_option("-i,--stepbytes", raw.step, "bytes between sizes (instead of -f)");
  app.add_option("-f,--stepfactor", raw.factor, "factor between sizes (2)");
  app.add_option("--sizes", raw.sizes, "these sizes in bytes, separated by commas");
  app.add_option("--counts", raw.counts, "these counts of elements, separated by commas");
  app.add_option("-d,--datatype", raw.type, "types, separated by commas: " + list_names(kTypes))
      ->capture_default_str();
  app.add_option("-o,--op", raw.op, "operations: " + list_names(kOps))->capture_default_str();
  app.add_option("-r,--root", options.root, "root of collectives that have one")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  app.add_flag("--in-place", raw.only_in, "in place only");
  app.add_flag("--out-of-place", raw.only_out, "out of place only");
  app.add_flag("--both", raw.both, "in place and out of place (the default)");
  app.add_option("-c,--check", raw.check, "1: check every element in every round; 0: do not")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of inputs and delays")->capture_default_str();
}

void declare_timing(CLI::App& app, Raw& raw, Options& options) {
  app.add_option("-n,--iters", raw.iterations, "calls in a round (20; on CPUs by their duration)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("-w,--warmup_iters", options.warmup, "untimed calls before the first round")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds of each size (5; with --against 9)")
      ->check(CLI::Range(1, 10'000));
  app.add_option("-G,--cudagraph", options.graph_launches,
                 "capture -n calls in a graph and launch it this often in a round; 0: no graph")
      ->check(CLI::Range(0, 10'000));
  app.add_option("--rotate", options.rotate,
                 "buffer sets used in turn (enough to exceed 128 MiB, at most 8)")
      ->check(CLI::Range(1, 1024));
  app.add_option("-z,--blocking", raw.blocking, "1: wait for each call before the next");
  app.add_option("--jitter", options.jitter_us,
                 "add a pass in which each rank enters each call up to this many us late")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("-I,--p99", options.percentiles, "print the 99th percentile of the rounds as well");
}

void declare_place(CLI::App& app, Raw& raw, Options& options) {
  app.add_option("-g,--ranks", options.ranks,
                 "ranks to start on this host (one per GPU; 2 on CPUs)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--threads", options.threads,
               "ranks are threads of one process: those of one GPU run at the same time");
  app.add_option("--per-node", options.per_node,
                 "let this host pose as nodes of so many ranks each (sets ORIEL_HOSTID)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--backend", raw.backend, "where buffers live: auto, cuda, host")
      ->check(CLI::IsMember({"auto", "cuda", "host"}))
      ->capture_default_str();
  app.add_option("--lib", raw.library, "library to measure (../lib/libnccl.so.2)");
  app.add_option("--against", raw.against, "a second library, measured in alternation");
  app.add_option("-R,--local_register", raw.registration_number,
                 "0: no registration, 1: ncclCommRegister, 2: symmetric windows (the default)")
      ->check(CLI::Range(0, 2));
  app.add_option("--register", raw.registration, "none, local, both, in, out (instead of -R)");
  app.add_option("--against-register", raw.against_registration, "the same for --against");
  app.add_option("--env", raw.environment, "NAME=VALUE for the library's ranks")
      ->allow_extra_args(false);
  app.add_option("--against-env", raw.against_environment, "the same for --against")
      ->allow_extra_args(false);
  app.add_option("--blocks", options.blocks, "thread blocks of a collective (min and max CTAs)")
      ->check(CLI::Range(0, 1024));
  app.add_option("--rendezvous", options.rendezvous,
                 "host:port or file:PATH where a launcher's ranks meet");
  app.add_option("-T,--timeout", raw.timeout_s, "seconds that a step may take")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_option("-J,--json", options.json_path, "write all rounds to this file");
  app.add_flag("--serve", options.serve,
               "read lines 'BYTES CALLS' and answer each with 'MICROSECONDS WRONG'");
}

}  // namespace

Result<std::size_t> parse_bytes(std::string_view text) {
  std::size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, value);
  std::string unit(rest, end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  if (unit == "K" || unit == "KB" || unit == "KIB") shift = 10;
  if (unit == "M" || unit == "MB" || unit == "MIB") shift = 20;
  if (unit == "G" || unit == "GB" || unit == "GIB") shift = 30;
  if (unit == "T" || unit == "TB" || unit == "TIB") shift = 40;
  if (rest == text.data() || shift < 0)
    return usage_error(fmt::format("'{}' is not a size such as 8, 4K, 1M, 1G or 1T", text));
  if (status != std::errc{} || value > (kLargest >> shift))
    return usage_error(fmt::format("'{}' is too large: sizes go up to {}T", text, kLargest >> 40));
  return value << shift;
}

Result<DataType> parse_type(std::string_view name) {
  const auto found = find_name(kTypes, name);
  if (!found) return usage_error(fmt::format("type '{}': not one of {}", name, list_names(kTypes)));
  return static_cast<DataType>(*found);
}
Result<ReduceOp> parse_op(std::string_view name) {
  const auto found = find_name(kOps, name);
  if (!found)
    return usage_error(fmt::format("operation '{}': not one of {}", name, list_names(kOps)));
  return static_cast<ReduceOp>(*found);
}
std::string_view table_name(DataType type) {
  return kTypes[static_cast<std::size_t>(type)].table;
}
std::string_view table_name(ReduceOp op) {
  return kOps[static_cast<std::size_t>(op)].table;
}
std::string_view table_name(Collective collective) {
  return kCollectives[static_cast<std::size_t>(collective)];
}
std::string_view name_of(Registration registration) {
  return kRegistrations[static_cast<std::size_t>(registration)];
}
std::string_view name_of(Placement placement) {
  return placement == Placement::in_place ? "in_place" : "out_of_place";
}

int rotation(const Options& options, std::size_t bytes) {
  if (options.rotate > 0) return options.rotate;
  if (bytes == 0) return 1;
  const std::size_t sets = kRotationBytes / (2 * bytes) + 1;
  return static_cast<int>(std::min<std::size_t>(sets, kMostSets));
}

std::variant<Options, int> parse_options(int argc, char** argv) {
  Raw raw;
  Options options;
  tools::CommandLine line(
      "oriel-perf",
      "Measures a collective of a libnccl-compatible library, checks its results, and compares\n"
      "two libraries round by round. Times are medians over the rounds of the slowest rank's time\n"
      "per call. Flags and columns are those of nccl-tests.");
  declare_work(line.app(), raw, options);
  declare_timing(line.app(), raw, options);
  declare_place(line.app(), raw, options);
  if (const auto status = line.parse(argc, argv)) return *status;
  if (auto understood = understand(raw, options); !understood) {
    return line.misuse(understood.error().message());
  }
  return options;
}

}  // namespace oriel::perf
