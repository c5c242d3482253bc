// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/choice.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::kernels {
namespace {

constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();

// Payload bytes of a packet: on a GPU floats fill it, and all else shares it with flags by halves.
std::uint64_t line_payload(Backend backend, DataType type) {
  if (backend == Backend::host) return kLineBytes / 2;
  const bool is_float = type == DataType::f16 || type == DataType::bf16 || type == DataType::f32 ||
                        type == DataType::f64 || type == DataType::e4m3 || type == DataType::e5m2;
  return is_float ? kLineBytes : kLineBytes / 2;
}

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return b == 1 ? a : (a + b - 1) / b;  // a division takes 5 ns, and a CPU rank divides by one
}

Result<Algorithm> algorithm_of(const std::string& name, Backend backend) {
  const bool on_gpus = backend == Backend::cuda;
  const char* const hint =
      on_gpus ? "use one_shot, two_shot or stream" : "use one_shot, two_shot, stream or eager";
  for (int i = 0; i < kAlgorithmCount; ++i) {
    if (name != name_of(static_cast<Algorithm>(i))) continue;
    if (!on_gpus || i < kGpuAlgorithmCount) return static_cast<Algorithm>(i);
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the algorithm \"{}\" is for CPU ranks, not for GPUs", name))
        .with_hint(hint);
  }
  return Error(ErrorCode::invalid_usage, fmt::format("there is no algorithm \"{}\"", name))
      .with_hint(hint);
}

Result<TableEntry> parse_entry(const std::string& line, int number) {
  std::istringstream words(line);
  std::string backend, max_bytes, algorithm;
  TableEntry entry;
  words >> backend >> entry.ranks >> max_bytes >> algorithm >> entry.plan.ctas >>
      entry.plan.threads >> entry.plan.chunk_bytes >> entry.plan.depth >> entry.plan.lead;
  std::string rest;
  const auto bad = [&](const std::string& what) {
    return Error(ErrorCode::invalid_usage, fmt::format("line {} of the table: {}", number, what))
        .with_hint("backend ranks max_bytes algorithm ctas threads chunk_bytes depth lead");
  };
  if (words.fail() || words >> rest) return bad("there are not nine fields of the right kind");
  if (backend != "host" && backend != "cuda") return bad("backend is neither host nor cuda");
  entry.backend = backend == "cuda" ? Backend::cuda : Backend::host;
  if (max_bytes == "max") {
    entry.max_bytes = kAnySize;
  } else {
    char* end = nullptr;
    entry.max_bytes = std::strtoull(max_bytes.c_str(), &end, 10);
    if (*end != '\0' || max_bytes[0] == '-') return bad("max_bytes is no number");
  }
  auto parsed = algorithm_of(algorithm, entry.backend);
  if (!parsed.ok()) return bad(parsed.error().message());
  entry.plan.algorithm = parsed.value();
  const bool streams = entry.plan.algorithm == Algorithm::stream;
  if (entry.ranks < 1 || entry.plan.ctas < 1 || entry.plan.threads < 1 ||
      entry.plan.threads > 512) {
    return bad("ranks, ctas and threads are at least 1, threads at most 512");
  }
  if (streams && (entry.plan.chunk_bytes % 128 != 0 || entry.plan.chunk_bytes == 0 ||
                  entry.plan.lead < 1 || entry.plan.depth <= entry.plan.lead)) {
    return bad("chunk_bytes is a multiple of 128, lead at least 1 and depth above lead");
  }
  return entry;
}

}  // namespace

Result<ChoiceTable> ChoiceTable::parse(std::string_view text) {
  std::vector<TableEntry> entries;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line.resize(std::min(line.size(), line.find('#')));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ORIEL_TRY(entries.emplace_back(), parse_entry(line, number));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.max_bytes < b.max_bytes; });
  return ChoiceTable(std::move(entries));
}

Result<ChoiceTable> ChoiceTable::read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    return Error(ErrorCode::invalid_usage, fmt::format("cannot read the table \"{}\"", path))
        .with_hint("ORIEL_TABLE names a readable file");
  }
  auto table = parse(text.str());
  if (!table.ok()) return std::move(table).error().with_context("reading \"" + path + "\"");
  return table;
}

const TableEntry* ChoiceTable::find(Backend backend, int ranks, std::uint64_t bytes) const {
  const TableEntry* best = nullptr;
  int best_distance = std::numeric_limits<int>::max();
  for (const TableEntry& entry : entries_) {
    if (entry.backend != backend || bytes > entry.max_bytes) continue;
    const int distance = std::abs(entry.ranks - ranks);
    if (distance >= best_distance) continue;
    best = &entry;
    best_distance = distance;
    if (distance == 0) break;  // entries are in the order of their sizes
  }
  return best;
}

std::string ChoiceTable::to_text() const {
  std::string text = "# backend ranks max_bytes algorithm ctas threads chunk_bytes depth lead\n";
  for (const TableEntry& entry : entries_) {
    const std::string size = entry.max_bytes == kAnySize ? "max" : std::to_string(entry.max_bytes);
    text += fmt::format("{} {} {} {} {} {} {} {} {}\n",
                        entry.backend == Backend::cuda ? "cuda" : "host", entry.ranks, size,
                        name_of(entry.plan.algorithm), entry.plan.ctas, entry.plan.threads,
                        entry.plan.chunk_bytes, entry.plan.depth, entry.plan.lead);
  }
  return text;
}

std::uint64_t ChoiceTable::hash() const {
  // FNV-1a over the text: tables are compared, not protected.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : to_text()) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  }
  return hash;
}

bool fits(const Plan& plan, Backend backend, const ScratchLayout& layout, DataType type,
          std::uint64_t count) {
  if (plan.ctas > layout.max_ctas) return false;
  if (plan.algorithm == Algorithm::stream) {
    return plan.chunk_bytes <= max_chunk_bytes(layout, plan.depth);
  }
  if (layout.ranks < 2) return false;
  if (plan.algorithm == Algorithm::eager) {
    if (backend != Backend::host) return false;
    const std::uint64_t lines = divide_up(count * size_of(type), kEagerPayloadBytes);
    return lines * kEagerLineBytes <= layout.eager_lane_bytes;
  }
  const bool shared = plan.algorithm == Algorithm::two_shot;
  std::uint64_t lines = divide_up(count * size_of(type), line_payload(backend, type));
  if (shared) lines = divide_up(lines, static_cast<std::uint64_t>(layout.ranks));
  // A CTA's threads take lines in turns of one each; all slots of a turn are its own.
  const auto threads = static_cast<std::uint64_t>(plan.threads);
  const auto turns = divide_up(lines, threads * static_cast<std::uint64_t>(plan.ctas));
  return turns * threads * kLineBytes <= layout.lane_bytes[shared ? 1 : 0];
}

Split split_work(const Plan& plan, Backend backend, int ranks, DataType type, std::uint64_t count) {
  const auto sharers = static_cast<std::uint64_t>(ranks);
  Split split;
  if (plan.algorithm == Algorithm::stream) {
    // Multiples of 128 bytes, so that chunks start aligned to a cache line relative to the buffer.
    const std::uint64_t quantum = 128 / size_of(type);
    const auto round_up = [&](std::uint64_t n) { return divide_up(n, quantum) * quantum; };
    split.share = round_up(divide_up(count, sharers));
    split.part = round_up(divide_up(split.share, static_cast<std::uint64_t>(plan.ctas)));
  } else if (plan.algorithm == Algorithm::two_shot) {
    split.share = divide_up(divide_up(count * size_of(type), line_payload(backend, type)), sharers);
  }
  return split;
}

Result<Plan> choose_plan(const ChoiceTable& table, const Overrides& overrides, Backend backend,
                         const ScratchLayout& layout, DataType type, std::uint64_t count) {
  // The table speaks of full lines; types whose lines are half flags count double.
  const std::uint64_t bytes = count * size_of(type);
  const std::uint64_t weight =
      backend == Backend::cuda ? kLineBytes / line_payload(backend, type) : 1;
  const TableEntry* entry = table.find(backend, layout.ranks, bytes * weight);
  if (entry == nullptr) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the table has no entry for {} bytes among {} ranks", bytes,
                             layout.ranks))
        .with_hint("end the list of each backend with an entry for \"max\" bytes");
  }
  Plan plan = entry->plan;
  if (!overrides.algorithm.empty()) {
    ORIEL_TRY(plan.algorithm, algorithm_of(overrides.algorithm, backend));
  }
  if (overrides.ctas > 0) plan.ctas = overrides.ctas;
  if (overrides.threads > 0) plan.threads = overrides.threads;
  plan.ctas = std::min(plan.ctas, layout.max_ctas);
  if (plan.algorithm != Algorithm::stream) {
    if (fits(plan, backend, layout, type, count)) return plan;
    const bool in_packets = plan.algorithm != Algorithm::eager;
    plan.algorithm = Algorithm::two_shot;
    if (in_packets && fits(plan, backend, layout, type, count)) return plan;
    plan.algorithm = Algorithm::stream;
  }
  if (plan.depth == 0) {
    plan.chunk_bytes = backend == Backend::cuda ? 16384 : 65536;
    plan.depth = 4;
    plan.lead = 2;
  }
  if (overrides.depth > 1) {
    plan.depth = overrides.depth;
    plan.lead = std::min(plan.lead, plan.depth - 1);
  }
  if (overrides.chunk_bytes > 0) plan.chunk_bytes = overrides.chunk_bytes / 128 * 128;
  const auto room = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(max_chunk_bytes(layout, plan.depth), 1u << 30));
  plan.chunk_bytes = std::max(128u, std::min(plan.chunk_bytes, room));
  return plan;
}

}  // namespace oriel::kernels
