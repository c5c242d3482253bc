// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

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

/// What a launch carries so far, in warps of a GPU: one for each lane that the messages between two
/// ranks use in one direction.
class StreamCount {
 public:
  explicit StreamCount(const ExchangeFacts& facts) : facts_(facts) {}

  void add(const Placed& placed) {
    std::int32_t& lanes = lanes_[{placed.is_send, placed.message->peer}];
    const std::int32_t needed = lanes_of(facts_, *placed.message);
    if (needed <= lanes) return;
    total_ += needed - lanes;
    lanes = needed;
  }
  std::int32_t total() const { return total_; }

  static std::int32_t lanes_of(const ExchangeFacts& facts, const Message& message) {
    const bool far = facts.index_of(message.peer) < 0;
    const ChannelLayout& layout = far ? facts.common.far_channels : facts.common.channels;
    return cut_over_lanes(layout, message.bytes).lanes;
  }

 private:
  const ExchangeFacts& facts_;
  std::map<std::pair<bool, std::int32_t>, std::int32_t> lanes_;
  std::int32_t total_ = 0;
};

int ctas_for(std::int32_t streams) {
  return std::max(1, (streams + kMaxWarps - 1) / kMaxWarps);
}

/// Returns where the launch ends that begins with placed[next]: behind as many whole rounds as fit,
/// but at least one.
std::size_t end_of_launch(const std::vector<Placed>& placed, std::size_t next,
                          const ExchangeFacts& facts) {
  const auto most = static_cast<std::size_t>(facts.most_messages);
  const bool on_gpu = facts.most_ctas > 0;
  StreamCount streams(facts);
  std::size_t end = next;
  while (end < placed.size()) {
    std::size_t round_end = end;  // a round has at most a send and a receive
    while (round_end < placed.size() && placed[round_end].round() == placed[end].round()) {
      streams.add(placed[round_end++]);
    }
    const bool fits =
        round_end - next <= most && (!on_gpu || streams.total() <= facts.most_ctas * kMaxWarps);
    if (!fits && end > next) break;
    end = round_end;
  }
  return end;
}

void place_messages(ExchangeArguments& launch, const ExchangeFacts& facts,
                    std::vector<Placed> part) {
  // A rank begins with its neighbour, so that not all send to one rank at once.
  std::stable_sort(part.begin(), part.end(), [](const Placed& a, const Placed& b) {
    return std::pair(!a.is_send, a.distance) < std::pair(!b.is_send, b.distance);
  });
  std::int32_t streams = 0;
  std::int32_t lanes = 0;  // of the last run
  for (std::size_t i = 0; i < part.size(); ++i) {
    const Placed& one = part[i];
    const bool is_new =
        i == 0 || part[i - 1].is_send != one.is_send || part[i - 1].distance != one.distance;
    if (is_new) {
      streams += std::exchange(lanes, 0);
      MessageRun& run = launch.run[launch.runs++];
      run.stream = static_cast<std::uint16_t>(streams);
      run.message = static_cast<std::uint8_t>(launch.messages);
      run.team_member = static_cast<std::uint8_t>(facts.index_of(one.message->peer) + 1);
      if (one.is_send) launch.send_runs = launch.runs;
    }
    lanes = std::max(lanes, StreamCount::lanes_of(facts, *one.message));
    launch.message[launch.messages++] = *one.message;
    if (one.is_send) launch.sends = launch.messages;
  }
  streams += lanes;
  launch.run[launch.runs].stream = static_cast<std::uint16_t>(streams);
  launch.run[launch.runs].message = static_cast<std::uint8_t>(launch.messages);
  launch.ctas = std::max(launch.ctas, ctas_for(streams));
}

/// Copies leave with the first launches, a few with each.
std::size_t place_copies(ExchangeArguments& launch, const ExchangeFacts& facts,
                         const std::vector<LocalCopy>& copies, std::size_t next) {
  constexpr std::uint64_t kBytesOfCta = 32 << 10;
  for (; next < copies.size() && launch.copies < kMostCopies; ++next) {
    const LocalCopy& copy = copies[next];
    if (copy.from == copy.to || copy.bytes == 0) continue;
    launch.copy[launch.copies++] = copy;
    const auto useful = static_cast<std::int32_t>(std::min<std::uint64_t>(
        copy.bytes / kBytesOfCta + 1, static_cast<unsigned>(facts.most_ctas)));
    launch.ctas = std::max(launch.ctas, useful);
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
  using Offset = std::vector<Placed>::difference_type;
  const std::vector<Placed> placed =
      in_rounds(exchange, facts.common.world_rank, std::max(1, facts.world_size));
  std::vector<ExchangeArguments> launches;
  std::size_t next = 0;
  std::size_t next_copy = 0;
  do {
    ExchangeArguments& launch = launches.emplace_back(begin_launch(exchange, facts));
    const std::size_t end = end_of_launch(placed, next, facts);
    place_messages(
        launch, facts,
        {placed.begin() + static_cast<Offset>(next), placed.begin() + static_cast<Offset>(end)});
    next = end;
    next_copy = place_copies(launch, facts, exchange.copies, next_copy);
  } while (next < placed.size() || next_copy < exchange.copies.size());
  if (exchange.fold.bytes > 0) {
    // What it waits for is sent by the same launch of each peer, so all must be in one: a message
    // and a lane for each rank of a team.
    ExchangeArguments& launch = launches.back();
    launch.fold = exchange.fold;
    const LaneCut cut = cut_over_lanes(launch.channels, exchange.fold.bytes);
    launch.ctas = std::max(launch.ctas, ctas_for(launch.run[launch.runs].stream + cut.lanes));
  }
  return launches;
}

}  // namespace oriel::kernels
