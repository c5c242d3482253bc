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
        .with_hint(fmt::format("write the columns \"{}\"", kColumns));
  }
  /// Returns the number in column `column`, which must be from `least` to `most`.
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

/// Reads the last three columns, which concern only streams.
Status read_stream(const Line& line, Plan& plan) {
  using Number = std::uint32_t;
  ORIEL_TRY(plan.chunk_bytes, line.read<Number>(6, "chunk_bytes", kMinChunkBytes, kMaxChunkBytes));
  if (plan.chunk_bytes % kMinChunkBytes != 0) {
    return line
        .bad(fmt::format("chunk_bytes is {}, but must be a multiple of {}", plan.chunk_bytes,
                         kMinChunkBytes))
        .with_hint("round it to such a multiple");
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
  if (!algorithm.ok()) {
    return line.bad(algorithm.error().message()).with_hint(algorithm.error().hint());
  }
  entry.plan.algorithm = algorithm.value();
  ORIEL_TRY(entry.plan.ctas, line.read<int>(4, "ctas", 1, kMaxCtas));
  ORIEL_TRY(entry.plan.threads, line.read<int>(5, "threads", 1, kMaxThreads));
  // Other algorithms may have zeros for the stream to which a message falls back; fit_plan() then
  // uses defaults.
  const bool open = line.words[6] == "0" && line.words[7] == "0" && line.words[8] == "0";
  if (!open || entry.plan.algorithm == Algorithm::stream) {
    ORIEL_CHECK(read_stream(line, entry.plan));
  }
  return entry;
}

std::string text_of(const TableEntry& entry) {
  const std::string size = entry.max_bytes == kAnySize ? "max" : std::to_string(entry.max_bytes);
  return fmt::format("{} {} {} {} {} {} {} {} {}\n",
                     entry.backend == Backend::cuda ? "cuda" : "host", entry.ranks, size,
                     name_of(entry.plan.algorithm), entry.plan.ctas, entry.plan.threads,
                     entry.plan.chunk_bytes, entry.plan.depth, entry.plan.lead);
}

}  // namespace

/// Collects lines into lists.
class ChoiceTable::Reader {
 public:
  Status add(Line line) {
    ORIEL_TRY(const TableEntry entry, parse_entry(line));
    std::size_t i = 0;
    while (i < lists_.size() && (is_whole(i) || lists_[i].backend() != entry.backend ||
                                 lists_[i].ranks() != entry.ranks)) {
      ++i;
    }
    if (i == lists_.size()) {
      lists_.emplace_back();
      last_.emplace_back();
    }
    lists_[i].entries.push_back(entry);
    lists_[i].ctas = std::max(lists_[i].ctas, entry.plan.ctas);
    last_[i] = std::move(line);
    return {};
  }
  Result<std::vector<List>> finish() && {
    for (std::size_t i = lists_.size(); i-- > 0;) {
      if (!is_whole(i)) return unended(lists_[i].entries.back(), last_[i]);
      auto& entries = lists_[i].entries;
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.max_bytes < b.max_bytes; });
    }
    return std::move(lists_);
  }

 private:
  bool is_whole(std::size_t i) const { return lists_[i].entries.back().max_bytes == kAnySize; }
  static Error unended(const TableEntry& entry, const Line& line) {
    return line.bad(fmt::format(
        "it ends the list for {} among {} ranks, but its max_bytes is \"{}\" and not \"max\"",
        line.words[0], entry.ranks, line.words[2]));
  }

  std::vector<List> lists_;
  std::vector<Line> last_;  // last line of each list
};

Result<ChoiceTable> ChoiceTable::parse(std::string_view text) {
  Reader reader;
  std::istringstream lines{std::string(text)};
  std::string content;
  for (int number = 1; std::getline(lines, content); ++number) {
    content.resize(std::min(content.size(), content.find('#')));
    Line line;
    line.number = number;
    std::istringstream words(content);
    for (std::string word; words >> word;) line.words.push_back(word);
    if (!line.words.empty()) ORIEL_CHECK(reader.add(std::move(line)));
  }
  ORIEL_TRY(auto lists, std::move(reader).finish());
  return ChoiceTable(std::move(lists));
}

Result<ChoiceTable> ChoiceTable::read(const std::string& path) {
  auto text = read_file(path, {.bytes = kMaxTableBytes});
  if (!text.ok()) {
    // The hint of the cause is about any file; the hint here is about the table.
    const std::string why = std::move(text).error().with_hint({}).to_string();
    return Error(ErrorCode::invalid_usage,
                 fmt::format("cannot read the table \"{}\": {}", path, why))
        .with_hint("set ORIEL_TABLE to a readable file");
  }
  auto table = parse(text.value());
  if (!table.ok()) return std::move(table).error().with_context("reading \"" + path + "\"");
  return table;
}

bool ChoiceTable::is_better(const List& list, const List& than, int ranks, int most_ctas) {
  const int distance = std::abs(list.ranks() - ranks);
  const int other = std::abs(than.ranks() - ranks);
  if (distance != other) return distance < other;
  if (list.ranks() != than.ranks()) return list.ranks() > than.ranks();
  const bool fits = list.ctas <= most_ctas;
  if (fits != (than.ctas <= most_ctas)) return fits;
  return fits ? list.ctas > than.ctas : list.ctas < than.ctas;
}

const TableEntry* ChoiceTable::find(Backend backend, int ranks, int most_ctas,
                                    std::uint64_t bytes) const {
  const List* best = nullptr;
  for (const List& list : lists_) {
    if (list.backend() != backend) continue;
    if (best == nullptr || is_better(list, *best, ranks, most_ctas)) best = &list;
  }
  if (best == nullptr) return nullptr;
  const TableEntry* entry = best->entries.data();
  while (bytes > entry->max_bytes) ++entry;  // the last entry holds for any size
  return entry;
}

std::string ChoiceTable::to_text() const {
  std::string text = fmt::format("# {}\n", kColumns);
  for (const List& list : lists_) {
    for (const TableEntry& entry : list.entries) text += text_of(entry);
  }
  return text;
}

std::uint64_t ChoiceTable::hash() const {
  // FNV-1a of the text. It compares tables, but does not protect them.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : to_text()) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace oriel::kernels
