// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/plan/exchange.hpp"

/// Cuts an exchange into launches.
namespace oriel::kernels {
namespace {

/// A message with its place in the order of rounds.
struct Placed {
  std::uint32_t number;  ///< among those between the two ranks in this direction
  std::int32_t distance;
  bool is_send;
  const Message* message;

  auto round() const { return std::pair(number, distance); }
};

std::vector<Placed> in_rounds(const Exchange& exchange, int rank, int ranks) {
  std::vector<Placed> placed;
  placed.reserve(exchange.sends.size() + exchange.receives.size());
  const auto add = [&](const std::vector<Message>& messages, bool is_send) {
    std::vector<std::uint32_t> counts(static_cast<std::size_t>(ranks));
    for (const Message& message : messages) {
      const int ahead = is_send ? message.peer - rank : rank - message.peer;
      const std::uint32_t number = counts[static_cast<std::size_t>(message.peer)]++;
      placed.push_back({number, (ahead + ranks) % ranks, is_send, &message});
    }
  };
  add(exchange.sends, true);
  add(exchange.receives, false);
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.round() < b.round(); });
  return placed;
}

int ctas_for(const ChannelLayout& channels, std::int32_t lanes) {
  return std::max(1, (lanes + channels.lanes_per_cta - 1) / channels.lanes_per_cta);
}

void place_messages(ExchangeArguments& launch, std::vector<Placed> part) {
  std::stable_sort(part.begin(), part.end(), [](const Placed& a, const Placed& b) {
    return std::tuple(!a.is_send, a.message->peer) < std::tuple(!b.is_send, b.message->peer);
  });
  std::int32_t lanes = 0;
  for (const Placed& one : part) {
    launch.message[launch.messages++] = *one.message;
    if (one.is_send) ++launch.sends;
    lanes = std::max(lanes, cut_over_lanes(launch.channels, one.message->bytes).lanes);
  }
  launch.ctas = std::max(launch.ctas, ctas_for(launch.channels, lanes));
  for (std::int32_t peer = 0; peer <= launch.ranks; ++peer) {
    const auto first_of = [&](std::int32_t from, std::int32_t to) {
      std::int32_t at = from;
      while (at < to && launch.message[at].peer < peer) ++at;
      return static_cast<std::uint8_t>(at);
    };
    launch.send_begin[peer] = first_of(0, launch.sends);
    launch.receive_begin[peer] = first_of(launch.sends, launch.messages);
  }
}

/// Copies leave with the first launches, a few with each.
std::size_t place_copies(ExchangeArguments& launch, const std::vector<LocalCopy>& copies,
                         std::size_t next) {
  for (; next < copies.size() && launch.copies < kMostCopies; ++next) {
    const LocalCopy& copy = copies[next];
    if (copy.from == copy.to || copy.bytes == 0) continue;
    launch.copy[launch.copies++] = copy;
    launch.ctas = std::max(
        launch.ctas, ctas_for(launch.channels, cut_over_lanes(launch.channels, copy.bytes).lanes));
  }
  return next;
}

ExchangeArguments begin_launch(const Exchange& exchange, const ExchangeFacts& facts) {
  ExchangeArguments launch = facts.common;
  launch.ctas = 1;
  launch.reduces = exchange.reduces;
  launch.operation = exchange.operation;
  launch.fold_signature = exchange.fold_signature;
  return launch;
}

}  // namespace

std::vector<ExchangeArguments> plan_exchange(const Exchange& exchange, const ExchangeFacts& facts) {
  const std::vector<Placed> placed =
      in_rounds(exchange, facts.common.rank, std::max(1, facts.common.ranks));
  const auto most = static_cast<std::size_t>(facts.most_messages);
  std::vector<ExchangeArguments> launches;
  std::size_t next = 0;
  std::size_t next_copy = 0;
  do {
    ExchangeArguments& launch = launches.emplace_back(begin_launch(exchange, facts));
    std::size_t end = next;
    while (end < placed.size()) {
      std::size_t round_end = end + 1;  // a round has at most a send and a receive
      while (round_end < placed.size() && placed[round_end].round() == placed[end].round()) {
        ++round_end;
      }
      if (round_end - next > most && end > next) break;
      end = round_end;
    }
    using Offset = std::vector<Placed>::difference_type;
    place_messages(launch, {placed.begin() + static_cast<Offset>(next),
                            placed.begin() + static_cast<Offset>(end)});
    next = end;
    next_copy = place_copies(launch, exchange.copies, next_copy);
  } while (next < placed.size() || next_copy < exchange.copies.size());
  if (exchange.fold.bytes > 0) {
    // A collective has at most a message for each peer, which is one launch.
    ExchangeArguments& launch = launches.back();
    launch.fold = exchange.fold;
    const LaneCut cut = cut_over_lanes(launch.channels, exchange.fold.bytes);
    launch.ctas = std::max(launch.ctas, ctas_for(launch.channels, cut.lanes));
  }
  return launches;
}

}  // namespace oriel::kernels
