// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "info/flight_merge.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/request/call_text.hpp"

namespace oriel::tools {
namespace {

using comm::FlightKind;

constexpr std::size_t kMostLines = 16;  // limit per list

/// Returns "rank 3" or "ranks 0, 2-5"; requires ascending ranks.
std::string text_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t parts = 0;
  for (std::size_t i = 0; i < ranks.size(); ++parts) {
    if (parts == kMostLines) return text + fmt::format(" and {} more", ranks.size() - i);
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += fmt::format("{}{}", parts == 0 ? "" : ", ", ranks[i]);
    if (end - i > 1) text += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return text;
}

/// Recorded calls of one kind and peer, by number. The recorder may have overwritten the calls
/// before the first.
class Sequence {
 public:
  void add(const NotedCall& call) { calls_[call.number] = &call; }
  std::uint64_t last() const { return calls_.empty() ? 0 : calls_.rbegin()->first; }
  const NotedCall* find(std::uint64_t number) const {
    const auto it = calls_.find(number);
    return it == calls_.end() ? nullptr : it->second;
  }
  const std::map<std::uint64_t, const NotedCall*>& calls() const { return calls_; }

 private:
  std::map<std::uint64_t, const NotedCall*> calls_;
};

std::string state_of(const NotedCall& call) {
  if (!call.ended) return "enqueued";
  return *call.ended ? "ended" : "not ended";
}

std::string message_text(const NotedCall& call) {
  return fmt::format("{} x {}, {}", call.call.count, name_of(call.call.type), state_of(call));
}

using RanksByText = std::map<std::string, std::vector<int>>;

/// Appends a line for each text, ordered by each text's first rank.
void append(std::string& out, const RanksByText& ranks_by_text, const char* indent) {
  std::map<int, std::pair<std::string_view, const std::vector<int>*>> lines;
  for (const auto& [text, ranks] : ranks_by_text) lines[ranks.front()] = {text, &ranks};
  std::size_t shown = 0;
  for (const auto& [first, line] : lines) {
    if (shown++ == kMostLines) {
      out += fmt::format("{}... and {} more\n", indent, lines.size() - kMostLines);
      return;
    }
    out += fmt::format("{}{}: {}\n", indent, text_of(*line.second), line.first);
  }
}

/// Files and calls of one communicator.
class Flight {
 public:
  Status add(const FlightFile& file) {
    if (!files_.empty() && files_.begin()->second->ranks != file.ranks) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("{} and {} have different numbers of ranks",
                               files_.begin()->second->path, file.path));
    }
    const auto [other, is_new] = files_.emplace(file.rank, &file);
    if (!is_new) {
      return Error(
          ErrorCode::invalid_argument,
          fmt::format("{} and {} are both of rank {}", other->second->path, file.path, file.rank));
    }
    for (const NotedCall& call : file.calls) {
      const bool is_send = call.kind == FlightKind::send;
      if (call.kind == FlightKind::collective) {
        collectives_[file.rank].add(call);
      } else if (is_send) {
        pairs_[{file.rank, call.call.root}].first.add(call);
      } else {
        pairs_[{call.call.root, file.rank}].second.add(call);
      }
    }
    return {};
  }

  std::string text() const {
    const FlightFile& any = *files_.begin()->second;
    std::string out =
        fmt::format("communicator {}{}: {} ranks\n", any.communicator,
                    any.name.empty() ? "" : fmt::format(" \"{}\"", any.name), any.ranks);
    RanksByText reasons;
    for (const auto& [rank, file] : files_) reasons[file->reason].push_back(rank);
    append(out, reasons, "  ");
    std::vector<int> silent;
    for (int rank = 0; rank < any.ranks; ++rank) {
      if (!files_.contains(rank)) silent.push_back(rank);
    }
    if (!silent.empty()) out += fmt::format("  {}: no file\n", text_of(silent));
    append_collectives(out);
    append_pairs(out);
    return out;
  }

 private:
  /// Appends the first collective that some rank has not made or made differently.
  void append_collectives(std::string& out) const {
    static const Sequence kNone;
    const auto sequence_of = [&](int rank) -> const Sequence& {
      const auto it = collectives_.find(rank);
      return it == collectives_.end() ? kNone : it->second;
    };
    std::set<std::uint64_t> numbers;
    for (const auto& [rank, sequence] : collectives_) {
      for (const auto& [number, call] : sequence.calls()) numbers.insert(number);
    }
    for (const std::uint64_t number : numbers) {
      std::set<std::string> different;
      RanksByText lines;
      for (const auto& [rank, file] : files_) {
        const Sequence& sequence = sequence_of(rank);
        if (const NotedCall* const call = sequence.find(number)) {
          const std::string name = comm::text_of(call->call);
          different.insert(name);
          lines[fmt::format("{}, {}", name, state_of(*call))].push_back(rank);
        } else if (sequence.last() < number && is_known(sequence, rank)) {
          different.insert("");
          const std::string last = sequence.last() == 0
                                       ? "it has made none"
                                       : fmt::format("its last call is {}", sequence.last());
          lines["not made; " + last].push_back(rank);
        }
      }
      if (different.size() < 2) continue;
      out += fmt::format("  call {} is the first that is not the same on all ranks:\n", number);
      return append(out, lines, "    ");
    }
    append_agreement(out, numbers.empty() ? 0 : *numbers.rbegin());
  }

  void append_agreement(std::string& out, std::uint64_t last) const {
    if (last == 0) return;
    out += fmt::format("  all of these ranks have made the same calls, up to call {}:\n", last);
    RanksByText lines;
    for (const auto& [rank, sequence] : collectives_) {
      const NotedCall* const call = sequence.find(last);
      if (call == nullptr) continue;
      lines[fmt::format("{}, {}", comm::text_of(call->call), state_of(*call))].push_back(rank);
    }
    append(out, lines, "    ");
  }

  /// Appends, for each pair of ranks, the first message without its other end or with a different
  /// size at the other end.
  void append_pairs(std::string& out) const {
    std::size_t found = 0;
    for (const auto& [ranks, ends] : pairs_) {
      const std::string line = difference(ranks.first, ranks.second, ends.first, ends.second);
      if (!line.empty() && ++found <= kMostLines) out += "  " + line + "\n";
    }
    if (found > kMostLines) out += fmt::format("  ... and {} more pairs\n", found - kMostLines);
    if (found == 0 && !pairs_.empty()) out += "  no send or receive without its other end\n";
  }

  std::string difference(int from, int to, const Sequence& sends, const Sequence& receives) const {
    std::set<std::uint64_t> numbers;
    for (const auto& [number, call] : sends.calls()) numbers.insert(number);
    for (const auto& [number, call] : receives.calls()) numbers.insert(number);
    for (const std::uint64_t number : numbers) {
      const NotedCall* const send = sends.find(number);
      const NotedCall* const receive = receives.find(number);
      if (send != nullptr && receive != nullptr) {
        const auto bytes = [](const NotedCall& call) {
          return call.call.count * size_of(call.call.type);
        };
        if (bytes(*send) == bytes(*receive)) continue;
        return fmt::format("send {} from rank {} to rank {} ({}) differs from its receive ({})",
                           number, from, to, message_text(*send), message_text(*receive));
      }
      if (send != nullptr && is_known(receives, to) && receives.last() < number) {
        return fmt::format("send {} from rank {} to rank {} ({}) has no receive", number, from, to,
                           message_text(*send));
      }
      if (receive != nullptr && is_known(sends, from) && sends.last() < number) {
        return fmt::format("receive {} of rank {} from rank {} ({}) has no send", number, to, from,
                           message_text(*receive));
      }
    }
    return {};
  }

  /// Returns true if the rank's file shows how many calls of `sequence` the rank has made. Returns
  /// false without a file. If the file is full and has no call of `sequence`, older ones may have
  /// been overwritten, so the number is unknown too.
  bool is_known(const Sequence& sequence, int rank) const {
    const auto it = files_.find(rank);
    return it != files_.end() &&
           (!sequence.calls().empty() || it->second->calls.size() < comm::FlightRecorder::kRecords);
  }

  std::map<int, const FlightFile*> files_;  // key: rank
  std::map<int, Sequence> collectives_;
  /// Sends and receives by (from, to).
  std::map<std::pair<int, int>, std::pair<Sequence, Sequence>> pairs_;
};

}  // namespace

Result<std::string> compare_flights(const std::vector<FlightFile>& files) {
  std::map<std::string, Flight> flights;
  for (const FlightFile& file : files) ORIEL_CHECK(flights[file.communicator].add(file));
  std::string out;
  for (const auto& [communicator, flight] : flights) out += flight.text();
  return out;
}

}  // namespace oriel::tools
