// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <sstream>

#include <fmt/format.h>

#include "base/read_file.hpp"
#include "base/try.hpp"
#include "kernels/plan/choice.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels {
namespace {

constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();
constexpr const char* kColumns =
    "backend ranks max_bytes algorithm ctas threads chunk_bytes depth lead";
constexpr std::size_t kColumnCount = 9;
constexpr std::size_t kMaxTableBytes = std::size_t{1} << 20;

/// A line of a table, without its comment.
struct Line {
  int number = 0;
  std::vector<std::string> words;

  Error bad(const std::string& what) const {
    return Error(ErrorCode::invalid_usage, fmt::format("line {} of the table: {}", number, what))
        .with_hint(kColumns);
  }
  /// Column `column`, from `least` to `most`.
  template <class Number>
  Result<Number> read(std::size_t column, const char* name, Number least, Number most) const {
    const std::string& word = words[column];
    Number value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error == std::errc() && end == word.data() + word.size() && value >= least &&
        value <= most) {
      return value;
    }
    return bad(fmt::format("{} is \"{}\", but must be {} to {}", name, word, least, most));
  }
};

/// The last three columns, which concern streams only.
Status read_stream(const Line& line, Plan& plan) {
  using Number = std::uint32_t;
  ORIEL_TRY(plan.chunk_bytes, line.read<Number>(6, "chunk_bytes", kMinChunkBytes, kMaxChunkBytes));
  if (plan.chunk_bytes % kMinChunkBytes != 0) {
    return line.bad(fmt::format("chunk_bytes is {}, but must be a multiple of {}", plan.chunk_bytes,
                                kMinChunkBytes));
  }
  ORIEL_TRY(plan.depth, line.read<Number>(7, "depth", kMinDepth, kMaxDepth));
  ORIEL_TRY(plan.lead, line.read<Number>(8, "lead", 1, plan.depth - 1));
  return {};
}

Result<TableEntry> parse_entry(const Line& line) {
  if (line.words.size() != kColumnCount) {
    return line.bad(fmt::format("it has {} fields, not {}", line.words.size(), kColumnCount));
  }
  TableEntry entry;
  const std::string& backend = line.words[0];
  if (backend != "host" && backend != "cuda") return line.bad("backend is neither host nor cuda");
  entry.backend = backend == "cuda" ? Backend::cuda : Backend::host;
  ORIEL_TRY(entry.ranks, line.read<int>(1, "ranks", 1, kMaxTableRanks));
  entry.max_bytes = kAnySize;
  if (line.words[2] != "max") {
    ORIEL_TRY(entry.max_bytes, line.read<std::uint64_t>(2, "max_bytes", 0, kAnySize - 1));
  }
  auto algorithm = find_algorithm(line.words[3], entry.backend);
  if (!algorithm.ok()) return line.bad(algorithm.error().message());
  entry.plan.algorithm = algorithm.value();
  ORIEL_TRY(entry.plan.ctas, line.read<int>(4, "ctas", 1, kMaxCtas));
  ORIEL_TRY(entry.plan.threads, line.read<int>(5, "threads", 1, kMaxThreads));
  // Other algorithms may leave the stream open that runs where they have no room.
  const bool open = line.words[6] == "0" && line.words[7] == "0" && line.words[8] == "0";
  if (!open || entry.plan.algorithm == Algorithm::stream) {
    ORIEL_CHECK(read_stream(line, entry.plan));
  }
  return entry;
}

/// The lists, of a backend and a number of ranks, that go on to messages of any size.
class Ends {
 public:
  explicit Ends(const std::vector<TableEntry>& entries) {
    for (const TableEntry& entry : entries) {
      if (entry.max_bytes == kAnySize) of(entry) = true;
    }
  }
  bool& of(const TableEntry& entry) {
    return ends_[entry.backend == Backend::cuda][static_cast<std::size_t>(entry.ranks)];
  }

 private:
  bool ends_[2][kMaxTableRanks + 1] = {};
};

}  // namespace

Result<ChoiceTable> ChoiceTable::parse(std::string_view text) {
  std::vector<TableEntry> entries;
  std::vector<Line> read;  // the lines of the entries
  std::istringstream lines{std::string(text)};
  std::string content;
  for (int number = 1; std::getline(lines, content); ++number) {
    content.resize(std::min(content.size(), content.find('#')));
    Line line;
    line.number = number;
    std::istringstream words(content);
    for (std::string word; words >> word;) line.words.push_back(word);
    if (line.words.empty()) continue;
    ORIEL_TRY(entries.emplace_back(), parse_entry(line));
    read.push_back(std::move(line));
  }
  Ends ends(entries);
  for (std::size_t i = entries.size(); i-- > 0;) {
    if (ends.of(entries[i])) continue;
    return read[i].bad(fmt::format(
        "it ends the list for {} among {} ranks, but its max_bytes is \"{}\" and not \"max\"",
        read[i].words[0], entries[i].ranks, read[i].words[2]));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.max_bytes < b.max_bytes; });
  return ChoiceTable(std::move(entries));
}

Result<ChoiceTable> ChoiceTable::read(const std::string& path) {
  auto text = read_file(path, {.bytes = kMaxTableBytes});
  if (!text.ok()) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("cannot read the table \"{}\": {}", path, text.error().to_string()))
        .with_hint("ORIEL_TABLE names a readable file");
  }
  auto table = parse(text.value());
  if (!table.ok()) return std::move(table).error().with_context("reading \"" + path + "\"");
  return table;
}

const TableEntry* ChoiceTable::find(Backend backend, int ranks, std::uint64_t bytes) const {
  const TableEntry* best = nullptr;
  int best_distance = std::numeric_limits<int>::max();
  for (const TableEntry& entry : entries_) {
    if (entry.backend != backend || bytes > entry.max_bytes) continue;
    const int distance = std::abs(entry.ranks - ranks);
    if (distance == 0) return &entry;  // entries are in the order of their sizes
    // Every list reaches any size, so all calls find lines of the same one.
    if (distance < best_distance || (distance == best_distance && entry.ranks > best->ranks)) {
      best = &entry;
      best_distance = distance;
    }
  }
  return best;
}

std::string ChoiceTable::to_text() const {
  std::string text = fmt::format("# {}\n", kColumns);
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

}  // namespace oriel::kernels
