// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"

#include "kernels/algorithms/channel_ends.hpp"
#include "kernels/algorithms/packet_slot.hpp"
#include "kernels/host/data_ops_host.hpp"
#include "kernels/loops/reduce_loops.hpp"
#include "kernels/plan/exchange.hpp"

/// The short way of an exchange of CPU ranks. Uses the same slots, packets and counters as the
/// streams of exchange_streams.hpp, so one rank may take this way and its peer the other.
namespace oriel::kernels {
namespace {

using M = device::Memory;
using Slot = PacketSlot<device::Thread, M>;

/// Channel between this rank and one peer of its team.
class ShortChannel {
 public:
  ShortChannel(const ExchangeMemory& memory, std::int32_t index)
      : places_(memory),
        index_(index),
        depth_(memory.channels.packet_depth),
        offsets_(memory.channels, memory.rank, index, 0),
        counters_(*reinterpret_cast<ChannelCounters*>(places_.here(offsets_.counters()))) {}

  /// Sends a message if a slot is free.
  bool send(const Message& message) {
    return goes_in_packets(message) ? send_packets(message) : fill_slot(message);
  }
  /// Receives a message that arrives soon. False too if another message than this has arrived.
  bool receive(const Message& message) {
    return goes_in_packets(message) ? receive_packets(message) : empty_slot(message);
  }

 private:
  bool goes_in_packets(const Message& message) const {
    return message.bytes <= offsets_.layout().most_packet_bytes;
  }
  bool send_packets(const Message& message) {
    const std::uint64_t number = counters_.packets_sent;
    if (number - counters_.packet_credit >= depth_) {
      counters_.packet_credit = load(offsets_.packet_credit());
      if (number - counters_.packet_credit >= depth_) return false;
    }
    if (number % kPacketSweep < depth_) return false;  // SendStream writes all packets of the slot
    const Slot slot(places_.at(index_, offsets_.packet_slot_at_peer(number)), number);
    slot.send(ready_word(counters_.sent, message.signature), message.data, message.bytes, 0);
    counters_.packets_sent = number + 1;
    if (counters_.received_before == counters_.packets_received) {
      request_for_write(places_.at(index_, offsets_.packet_slot_at_peer(number + kSendsAhead)),
                        message.bytes);
    }
    counters_.received_before = counters_.packets_received;
    places_.wake(index_);
    return true;
  }
  /// Requests the lines of a later message, which is taken to be as long as this one. For a rank
  /// that sends one message after the other, such as the root of broadcasts. Its stores leave the
  /// processor in order, so each line would come from the receiver's cache alone. A rank that
  /// receives between its sends waits for the peer anyway, whose polls would take the lines back.
  static void request_for_write(const std::byte* slot, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < Slot::memory_of(bytes); at += kLineBytes) {
      device::arch::prefetch_for_write(slot + at);
    }
  }
  bool receive_packets(const Message& message) {
    const std::uint64_t number = counters_.packets_received;
    if (number - counters_.packets_returned >= depth_ / 2) return_credit();
    const Slot slot(places_.here(offsets_.packet_slot(number)), number);
    const std::uint64_t header = ready_word(counters_.received, message.signature);
    const auto give_up = [](const auto& /*arrived*/) { return false; };
    if (!slot.receive(header, message.data, message.bytes, give_up)) return false;
    counters_.packets_received = number + 1;
    // The next message has often been sent already. Its lines then arrive before the next call.
    const std::byte* const next = places_.here(offsets_.packet_slot(number + 1));
    for (std::uint64_t at = 0; at < Slot::memory_of(message.bytes); at += kLineBytes) {
      __builtin_prefetch(next + at);
    }
    return true;
  }

  /// Copies a message to or from a slot. Mostly messages go in packets, which need no copy loop.
  static void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    host::find_copy_loop(isa_in_use())(to, from, bytes, false);
  }
  bool fill_slot(const Message& message) {
    const std::uint64_t number = counters_.sent;
    if (number - load(offsets_.credit()) >= offsets_.layout().depth) return false;
    copy(places_.at(index_, offsets_.slot_at_peer(number)), message.data, message.bytes);
    counters_.sent = number + 1;
    store(offsets_.ready_at_peer(number), ready_word(number, message.signature));
    return true;
  }
  bool empty_slot(const Message& message) {
    const std::uint64_t number = counters_.received;
    const std::uint64_t word = ready_word(number, message.signature);
    for (int polls = 0; load(offsets_.ready(number)) != word; ++polls) {
      if (polls == kPolls) return false;
    }
    copy(message.data, places_.here(offsets_.slot(number)), message.bytes);
    counters_.received = number + 1;
    store(offsets_.credit_at_peer(), number + 1);
    return true;
  }
  void return_credit() {
    counters_.packets_returned = counters_.packets_received;
    store(offsets_.packet_credit_at_peer(), counters_.packets_returned);
  }
  std::uint64_t load(std::uint64_t offset) const {
    return M::load<device::Order::acquire>(
        reinterpret_cast<const std::uint64_t*>(places_.here(offset)));
  }
  /// Stores a word at the peer, and wakes it.
  void store(std::uint64_t offset, std::uint64_t word) const {
    M::store<device::Order::release>(reinterpret_cast<std::uint64_t*>(places_.at(index_, offset)),
                                     word);
    places_.wake(index_);
  }

  static constexpr std::uint64_t kLineBytes = 64;
  static constexpr std::uint64_t kSendsAhead = 2;
  static constexpr int kPolls = 256;  // about as long as a rank is usually late

  ChannelPlaces places_;
  std::int32_t index_;
  std::uint64_t depth_;
  ChannelOffsets offsets_;
  ChannelCounters& counters_;
};

/// Moves messages from the first on, until one cannot move, and removes these. Returns whether all
/// have moved.
template <class Move>
bool move_first(std::vector<Message>& messages, const ExchangeFacts& facts, const Move& move) {
  auto next = messages.begin();
  for (; next != messages.end(); ++next) {
    if (next->bytes == 0) continue;
    ShortChannel channel(facts.memory, facts.index_of(next->peer));
    if (move(channel, *next)) continue;
    messages.erase(messages.begin(), next);
    return false;
  }
  messages.clear();
  return true;
}

}  // namespace

bool is_short(const Exchange& exchange, const ExchangeFacts& facts) {
  if (facts.most_ctas != 0 || facts.memory.network != nullptr) return false;
  // Rounds of several launches must be those that the peers compute, from all messages.
  const std::size_t messages = exchange.sends.size() + exchange.receives.size();
  if (messages > static_cast<std::size_t>(facts.most_messages)) return false;
  const ChannelLayout& channels = facts.memory.channels;
  const auto fits = [&](const Message& one) {
    const bool in_packets = one.bytes <= channels.most_packet_bytes;
    const std::uint64_t slot = in_packets ? channels.packet_bytes : channels.slot_bytes;
    return one.bytes <= slot && one.bytes < channels.least_direct_bytes &&
           facts.index_of(one.peer) >= 0;
  };
  return std::all_of(exchange.sends.begin(), exchange.sends.end(), fits) &&
         std::all_of(exchange.receives.begin(), exchange.receives.end(), fits);
}

bool run_short_exchange_on_host(Exchange& exchange, const ExchangeFacts& facts) {
  for (const LocalCopy& copy : exchange.copies) {
    if (copy.to == copy.from || copy.bytes == 0) continue;  // without bytes, addresses may be null
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  exchange.copies.clear();
  const bool all_sent = move_first(
      exchange.sends, facts,
      [](ShortChannel& channel, const Message& message) { return channel.send(message); });
  const bool all_received = move_first(
      exchange.receives, facts,
      [](ShortChannel& channel, const Message& message) { return channel.receive(message); });
  return all_sent && all_received;
}

void fold_pair_on_host(const PairFold& fold) {
  host::ReduceLoopArgs loop;
  loop.dsts = &fold.output;
  loop.n_dsts = 1;
  loop.srcs = fold.inputs;
  loop.n_srcs = 2;
  loop.count = fold.count;
  loop.n_ranks_for_avg = 2;
  host::find_reduce_loop(fold.type, fold.op, isa_in_use())(loop);
}

}  // namespace oriel::kernels
