// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "kernels/plan/exchange.hpp"

/// Converts collectives, and groups of sends and receives, into exchanges.
namespace oriel::kernels {
namespace {

constexpr std::uint32_t kPointToPoint = 0xff;

std::uint32_t hash_of(std::uint64_t bytes, std::uint32_t kind, std::uint32_t type,
                      std::uint32_t root) {
  std::uint64_t hash = bytes;
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  mix(kind);
  mix(type);
  mix(root);
  return static_cast<std::uint32_t>(hash >> (64 - kSignatureBits));
}

std::uint32_t signature_of(const RankCollective& call) {
  const std::uint32_t root = has_root(call.collective) ? static_cast<std::uint32_t>(call.root) : 0;
  const std::uint32_t op = reduces(call.collective) ? static_cast<std::uint32_t>(call.op) + 1 : 0;
  return hash_of(call.count * size_of(call.type),
                 static_cast<std::uint32_t>(call.collective) | op << 8,
                 static_cast<std::uint32_t>(call.type), root);
}

/// Empties the lists and keeps their memory.
void clear(Exchange& exchange) {
  exchange.sends.clear();
  exchange.receives.clear();
  exchange.copies.clear();
  exchange.signature = 0;
}

/// Pairs the sends of a rank to itself with its receives from itself, as copies.
class OwnMessages {
 public:
  explicit OwnMessages(std::vector<LocalCopy>& copies) : copies_(copies) {}

  void add(const PointToPoint& call) {
    std::size_t& next = call.is_send ? sends_ : receives_;
    if (next == copies_.size()) copies_.push_back({nullptr, nullptr, call.bytes});
    LocalCopy& copy = copies_[next];
    if (call.is_send) {
      copy.from = call.data;
    } else {
      copy.to = call.data;
    }
    if (copy.bytes != call.bytes && !differs_) {
      differs_ = {next, call.is_send ? call.bytes : copy.bytes,
                  call.is_send ? copy.bytes : call.bytes};
    }
    ++next;
  }
  /// Returns invalid_usage if the sends and receives do not match.
  Status check(int rank) const {
    if (sends_ != receives_) {
      return Error(ErrorCode::invalid_usage,
                   fmt::format("rank {} sends {} messages to itself and receives {} from itself in "
                               "one group",
                               rank, sends_, receives_))
          .with_hint("a send to the own rank needs its receive in the same group");
    }
    if (!differs_) return {};
    return Error(ErrorCode::invalid_usage,
                 fmt::format("send {} of rank {} to itself has {} bytes, its receive {}",
                             differs_->number, rank, differs_->sent, differs_->received))
        .with_hint("give a send to the own rank and its receive the same count and type");
  }

 private:
  /// The first send and receive of unequal sizes.
  struct Unequal {
    std::size_t number;
    std::uint64_t sent;
    std::uint64_t received;
  };
  std::vector<LocalCopy>& copies_;
  std::size_t sends_ = 0;
  std::size_t receives_ = 0;
  std::optional<Unequal> differs_;
};

/// Makes the messages of one collective on one rank.
class CollectiveExchange {
 public:
  CollectiveExchange(const RankCollective& call, Exchange& made)
      : call_(call), bytes_(call.count * size_of(call.type)), made_(made) {
    clear(made_);
    made_.signature = signature_of(call);
  }

  void make() {
    if (bytes_ == 0) return;
    if (sends() && receives() && !reduces(call_.collective)) {
      made_.copies.push_back({input_for(call_.rank), output_from(call_.rank), bytes_});
    }
    // Each rank starts with its neighbour, so that ranks do not all send to one rank at once.
    for (int distance = 1; distance < call_.ranks; ++distance) {
      int to = call_.rank + distance;
      if (to >= call_.ranks) to -= call_.ranks;
      if (sends() && receives(to)) made_.sends.push_back(message(input_for(to), to));
      int from = call_.rank - distance;
      if (from < 0) from += call_.ranks;
      if (receives() && sends(from)) {
        made_.receives.push_back(message(output_from(from), from));
      }
    }
  }

 private:
  bool is_root(int rank) const { return rank == call_.root; }
  /// Returns whether `rank` has something to send. The function below returns whether it receives.
  bool sends(int rank) const {
    const bool from_root =
        call_.collective == Collective::broadcast || call_.collective == Collective::scatter;
    return !from_root || is_root(rank);
  }
  bool receives(int rank) const {
    const bool at_root =
        call_.collective == Collective::gather || call_.collective == Collective::reduce;
    return !at_root || is_root(rank);
  }
  bool sends() const { return sends(call_.rank); }
  bool receives() const { return receives(call_.rank); }

  const std::byte* input_for(int rank) const {
    const auto block = sends_blocks(call_.collective) ? static_cast<std::uint64_t>(rank) : 0;
    return call_.input + block * bytes_;
  }
  std::byte* output_from(int rank) const {
    const auto block = receives_blocks(call_.collective) ? static_cast<std::uint64_t>(rank) : 0;
    return call_.output + block * bytes_;
  }
  Message message(const std::byte* data, int peer) const {
    return {const_cast<std::byte*>(data), bytes_, peer, made_.signature};
  }

  const RankCollective& call_;
  std::uint64_t bytes_;
  Exchange& made_;
};

/// Pipelines a broadcast in parts. The relay of another team is the rank that receives from the
/// root. In exchange i the root sends part i, and each relay forwards part i - 1 to its team.
class TeamsBroadcast {
 public:
  TeamsBroadcast(const RankCollective& call, const std::vector<std::vector<int>>& teams)
      : call_(call),
        teams_(teams),
        bytes_(call.count * size_of(call.type)),
        signature_(signature_of(call)) {
    for (const std::vector<int>& team : teams) {
      const auto place = std::find(team.begin(), team.end(), call.root) - team.begin();
      if (place < std::ssize(team)) root_place_ = static_cast<std::size_t>(place);
    }
    const std::uint64_t parts = std::clamp<std::uint64_t>(bytes_ / kLeastPart, 1, kMostParts);
    part_ = round_up(divide_up(bytes_, parts), 128);
  }

  std::vector<Exchange> make() const {
    if (bytes_ == 0) return {Exchange{}};
    const std::uint64_t parts = divide_up(bytes_, part_);
    std::vector<Exchange> made(parts + 1);
    for (std::uint64_t i = 0; i < parts; ++i) {
      for (const std::vector<int>& team : teams_) add(made[i], made[i + 1], team, i);
    }
    if (call_.rank == call_.root) made[0].copies.push_back({call_.input, call_.output, bytes_});
    std::erase_if(made, [](const Exchange& one) {
      return one.sends.empty() && one.receives.empty() && one.copies.empty();
    });
    return made;
  }

 private:
  static constexpr std::uint64_t kLeastPart = 1 << 20;
  static constexpr std::uint64_t kMostParts = 64;

  /// Adds the messages of this rank that bring part `i` to a team. In the root's team, all go into
  /// `first`. In another team, the one to the relay goes into `first`, the relay's into `then`.
  void add(Exchange& first, Exchange& then, const std::vector<int>& team, std::uint64_t i) const {
    const bool has_root = std::find(team.begin(), team.end(), call_.root) != team.end();
    const int relay = has_root ? call_.root : team[root_place_ % team.size()];
    if (!has_root) add_message(first, call_.root, relay, i);
    for (const int member : team) {
      if (member != relay) add_message(has_root ? first : then, relay, member, i);
    }
  }
  void add_message(Exchange& exchange, int from, int to, std::uint64_t i) const {
    if (call_.rank != from && call_.rank != to) return;
    const std::uint64_t begin = i * part_;
    // A relay forwards the data that it has received.
    const std::byte* const data = call_.rank == call_.root ? call_.input : call_.output;
    const Message message{const_cast<std::byte*>(data) + begin, std::min(part_, bytes_ - begin),
                          call_.rank == from ? to : from, signature_};
    (call_.rank == from ? exchange.sends : exchange.receives).push_back(message);
  }

  const RankCollective& call_;
  const std::vector<std::vector<int>>& teams_;
  std::uint64_t bytes_;
  std::uint32_t signature_;
  std::size_t root_place_ = 0;
  std::uint64_t part_ = 1;
};

}  // namespace

void set_exchange(Exchange& exchange, const RankCollective& call) {
  CollectiveExchange(call, exchange).make();
}

std::vector<Exchange> broadcast_among_teams(const RankCollective& call,
                                            const std::vector<std::vector<int>>& teams) {
  return TeamsBroadcast(call, teams).make();
}

Status set_exchange(Exchange& exchange, std::span<const PointToPoint> calls, int rank) {
  clear(exchange);
  OwnMessages own(exchange.copies);
  for (const PointToPoint& call : calls) {
    if (call.peer == rank) {
      own.add(call);
    } else if (call.bytes > 0) {
      const std::uint32_t signature = hash_of(call.bytes, kPointToPoint, 0, 0);
      (call.is_send ? exchange.sends : exchange.receives)
          .push_back({call.data, call.bytes, call.peer, signature});
    }
  }
  return own.check(rank);
}

}  // namespace oriel::kernels
