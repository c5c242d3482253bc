// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "oriel/device/rounding.hpp"

#include "kernels/plan/choice.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

/// Cuts an exchange into launches.
namespace oriel::kernels {
namespace {

/// A message with its place in the order of rounds.
struct Placed {
  std::uint32_t number;  ///< index among the messages between the two ranks in this direction
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

/// Counts the streams that a launch needs so far. Messages from one rank to another take a stream
/// for each channel that they use.
class StreamCount {
 public:
  explicit StreamCount(const ExchangeFacts& facts) : facts_(facts) {}

  void add(const Placed& placed) {
    std::int32_t& channels = channels_[{placed.is_send, placed.message->peer}];
    const std::int32_t needed = channels_of(facts_, *placed.message);
    if (needed <= channels) return;
    total_ += needed - channels;
    channels = needed;
  }
  std::int32_t total() const { return total_; }

  static std::int32_t channels_of(const ExchangeFacts& facts, const Message& message) {
    const bool far = facts.index_of(message.peer) < 0;
    const ChannelLayout& layout = far ? facts.memory.far_channels : facts.memory.channels;
    return cut_over_channels(layout, message.bytes).channels;
  }

 private:
  const ExchangeFacts& facts_;
  std::map<std::pair<bool, std::int32_t>, std::int32_t> channels_;
  std::int32_t total_ = 0;
};

int ctas_for(std::int32_t streams) {
  return std::max(1, device::divide_up(streams, kMaxWarps));
}

/// Returns the end of the launch that starts with placed[next]. The launch takes as many whole
/// rounds as fit, but at least one.
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

ExchangeArguments& begin_launch(const Exchange& exchange, const ExchangeFacts& facts,
                                LaunchList& launches) {
  ExchangeArguments& launch = launches.add(facts.memory);
  launch.signature = exchange.signature;
  return launch;
}

/// Appends messages to a launch. The caller adds all sends first, and messages of one direction and
/// peer consecutively.
class MessagePlacer {
 public:
  MessagePlacer(ExchangeArguments& launch, const ExchangeFacts& facts)
      : launch_(launch), facts_(facts) {}

  void add(const Message& message, bool is_send) {
    const bool is_new = launch_.runs == (is_send ? 0 : launch_.send_runs) ||
                        launch_.message[launch_.messages - 1].peer != message.peer;
    if (is_new) begin_run(message.peer);
    if (is_send) launch_.send_runs = launch_.runs;
    channels_ = std::max(channels_, StreamCount::channels_of(facts_, message));
    const bool in_packets = message.bytes <= facts_.memory.channels.most_packet_bytes;
    if (!in_packets) launch_.form = std::min(launch_.form, ExchangeForm::near);
    launch_.message[launch_.messages++] = message;
    if (is_send) launch_.sends = launch_.messages;
  }
  /// Ends the last run. Returns the number of streams that the messages take.
  std::int32_t finish() {
    streams_ += std::exchange(channels_, 0);
    set_begin(launch_.run[launch_.runs]);
    launch_.ctas = std::max(launch_.ctas, ctas_for(streams_));
    return streams_;
  }

 private:
  void begin_run(std::int32_t peer) {
    streams_ += std::exchange(channels_, 0);
    MessageRun& run = launch_.run[launch_.runs++];
    set_begin(run);
    run.team_member = static_cast<std::uint8_t>(facts_.index_of(peer) + 1);
    if (run.team_member == 0) launch_.form = ExchangeForm::any;
  }
  void set_begin(MessageRun& run) const {
    run.stream = static_cast<std::uint16_t>(streams_);
    run.message = static_cast<std::uint8_t>(launch_.messages);
  }

  ExchangeArguments& launch_;
  const ExchangeFacts& facts_;
  std::int32_t streams_ = 0;
  std::int32_t channels_ = 0;  // channels of the last run
};

/// Returns whether the messages are in the order of the peers' distances, as in a collective, so
/// that each peer's messages are consecutive.
bool are_in_runs(const std::vector<Message>& messages, const ExchangeFacts& facts, bool is_send) {
  std::int32_t last = 0;
  for (const Message& message : messages) {
    const std::int32_t ahead = message.peer - facts.memory.world_rank;
    std::int32_t distance = is_send ? ahead : -ahead;
    if (distance < 0) distance += facts.world_size;
    if (distance < last) return false;
    last = distance;
  }
  return true;
}

/// Puts all messages into one launch if they fit and need no sorting. Returns whether they did.
bool place_at_once(const Exchange& exchange, const ExchangeFacts& facts, LaunchList& launches) {
  const std::size_t messages = exchange.sends.size() + exchange.receives.size();
  if (messages > static_cast<std::size_t>(facts.most_messages) ||
      !are_in_runs(exchange.sends, facts, true) || !are_in_runs(exchange.receives, facts, false)) {
    return false;
  }
  MessagePlacer placer(begin_launch(exchange, facts, launches), facts);
  for (const Message& message : exchange.sends) placer.add(message, true);
  for (const Message& message : exchange.receives) placer.add(message, false);
  const std::int32_t streams = placer.finish();
  if (facts.most_ctas == 0 || streams <= facts.most_ctas * kMaxWarps) return true;
  launches.drop_last();
  return false;
}

void place_messages(ExchangeArguments& launch, const ExchangeFacts& facts,
                    std::vector<Placed> part) {
  // A rank starts with its neighbour, so that ranks do not all send to one rank at once.
  std::stable_sort(part.begin(), part.end(), [](const Placed& a, const Placed& b) {
    return std::pair(!a.is_send, a.distance) < std::pair(!b.is_send, b.distance);
  });
  MessagePlacer placer(launch, facts);
  for (const Placed& one : part) placer.add(*one.message, one.is_send);
  placer.finish();
}

/// Adds copies from `next` on to a launch, at most kMostCopies. Returns the index of the first copy
/// that is left.
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

/// Returns whether the data of a message at this rank are in a window.
bool is_in_window(const ExchangeArguments& launch, const Message& message) {
  const auto slot_bytes = std::uint64_t{launch.stride_4g} << 32;
  const auto slot = reinterpret_cast<std::uintptr_t>(launch.flat_base) +
                    slot_bytes * static_cast<std::uint64_t>(launch.rank);
  return reinterpret_cast<std::uintptr_t>(message.data) - slot < slot_bytes;
}

/// Returns whether the receivers can reach the data of all long messages that a launch sends.
bool sends_from_windows(const ExchangeArguments& launch) {
  return std::all_of(launch.message, launch.message + launch.sends, [&](const Message& message) {
    return message.bytes < launch.channels.least_direct_bytes || is_in_window(launch, message);
  });
}

/// Returns the parts of each message that its receiver on the same GPU copies. The warps of both
/// ranks then move about as many bytes. A rank that sends and receives assumes that its peers do as
/// it does: its receiving warps also copy blocks inside the rank. A root that has several receivers
/// or a block of its own lets them copy everything. Another rank that only sends pushes everything:
/// in a gather its receiver is the root, which has more to do than the rank.
std::int16_t pulled_parts_of(const ExchangeArguments& launch) {
  if (launch.sends == 0 || !sends_from_windows(launch)) return 0;
  if (launch.runs == launch.send_runs) {
    return launch.copies > 0 || launch.send_runs > 1 ? kPulledParts : std::int16_t{0};
  }
  std::uint64_t sent = 0;
  std::uint64_t copied = 0;
  for (std::int32_t i = 0; i < launch.sends; ++i) sent += launch.message[i].bytes;
  for (std::int32_t i = 0; i < launch.copies; ++i) copied += launch.copy[i].bytes;
  if (sent <= copied) return 0;
  return static_cast<std::int16_t>((sent - copied) / 2 * kPulledParts / sent);
}

/// Gives each stream several warps if the launch has few streams, as when its rank only sends.
/// Leaves half of all warps to the copies, if there are any and senders do not copy. The peers may
/// choose another number of warps, as the data in channels does not depend on it. If the ranks are
/// on one GPU, all launches of long messages have the form one_gpu.
void widen(ExchangeArguments& launch, const ExchangeFacts& facts) {
  if (launch.form != ExchangeForm::near) return;
  if (facts.on_one_gpu) {
    launch.form = ExchangeForm::one_gpu;
    launch.pulled_parts = pulled_parts_of(launch);
  }
  const std::int32_t most = facts.most_ctas * kMaxWarps;
  const std::int32_t streams = launch.run[launch.runs].stream;
  const bool pushes = launch.pulled_parts < kPulledParts;
  const std::int32_t senders = pushes ? launch.run[launch.send_runs].stream : 0;
  std::int32_t warps = 1;
  const auto fits = [&](std::int32_t more) {
    return more * streams <= most && (launch.copies == 0 || 2 * more * senders <= most);
  };
  while (warps < kMostStreamWarps && fits(2 * warps)) warps *= 2;
  if (warps == 1) return;
  if (launch.form == ExchangeForm::near) launch.form = ExchangeForm::wide;
  launch.stream_warps = warps;
  launch.ctas = std::max(launch.ctas, ctas_for(warps * streams));
  if (launch.copies == 0) return;
  launch.ctas = std::max(launch.ctas, std::min(facts.most_ctas, ctas_for(2 * warps * senders)));
}

/// Divides the CTAs of a launch between sending and local work, if it has long messages and long
/// copies. Local work are the copies, and what it receives outside windows. A CTA that did both
/// would send less, see own_ctas_among().
void divide_ctas(ExchangeArguments& launch) {
  constexpr std::uint64_t kLeastCopied = 32 << 20;
  constexpr auto kCtasOfLinks = static_cast<std::uint64_t>(own_ctas_among(2));  // for equal bytes
  if (launch.form != ExchangeForm::near && launch.form != ExchangeForm::wide) return;
  std::uint64_t copied = 0;
  for (std::int32_t i = 0; i < launch.copies; ++i) copied += launch.copy[i].bytes;
  if (copied < kLeastCopied) return;
  std::uint64_t sent = 0;
  std::uint64_t local = copied;
  for (std::int32_t i = 0; i < launch.messages; ++i) {
    const Message& message = launch.message[i];
    if (i < launch.sends) {
      sent += message.bytes;
    } else if (!is_in_window(launch, message)) {
      local += message.bytes;
    }
  }
  if (sent == 0) return;
  const std::int32_t groups = kMaxWarps / launch.stream_warps;
  const std::int32_t senders = launch.run[launch.send_runs].stream;
  const std::int32_t receivers = launch.run[launch.runs].stream - senders;
  const std::int32_t least = std::max(1, device::divide_up(receivers, groups));
  const std::int32_t most = launch.ctas - device::divide_up(senders, groups);
  if (most < least) return;
  const auto wanted = static_cast<std::int32_t>(
      std::min(device::divide_up(local * kCtasOfLinks, sent),
               local * static_cast<std::uint64_t>(launch.ctas) / (local + sent)));
  const std::int32_t sending = launch.ctas - std::clamp(wanted, least, most);
  if (sending >= kLeastSendingCtas) launch.send_ctas = static_cast<std::int16_t>(sending);
}

/// Cuts the messages into as many launches as they need.
void plan_in_rounds(const Exchange& exchange, const ExchangeFacts& facts, LaunchList& launches) {
  using Offset = std::vector<Placed>::difference_type;
  const std::vector<Placed> placed = in_rounds(exchange, facts.memory.world_rank, facts.world_size);
  for (std::size_t next = 0; next < placed.size();) {
    const std::size_t end = end_of_launch(placed, next, facts);
    place_messages(
        begin_launch(exchange, facts, launches), facts,
        {placed.begin() + static_cast<Offset>(next), placed.begin() + static_cast<Offset>(end)});
    next = end;
  }
}

}  // namespace

void plan_exchange(const Exchange& exchange, const ExchangeFacts& facts, LaunchList& launches) {
  const std::size_t first = launches.size();
  if (!place_at_once(exchange, facts, launches)) plan_in_rounds(exchange, facts, launches);
  std::size_t next_copy = 0;
  for (std::size_t i = first; i < launches.size() || next_copy < exchange.copies.size(); ++i) {
    ExchangeArguments& launch =
        i < launches.size() ? launches.begin()[i] : begin_launch(exchange, facts, launches);
    next_copy = place_copies(launch, facts, exchange.copies, next_copy);
    widen(launch, facts);
    divide_ctas(launch);
  }
}

}  // namespace oriel::kernels
