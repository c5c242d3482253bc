// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::test {

/// Model of GPUs that run the launches of exchanges and of team calls. It moves no bytes: it counts
/// slots, credits and steps. A GPU holds a bounded number of CTAs. A CTA stays resident until its
/// messages and steps have ended. If receivers copy from the sender's window, its CTA stays until
/// they have. The order of steps is random, so that runs have all kinds of
/// delays and orders.
class LaunchModel {
 public:
  using Launch = kernels::ExchangeArguments;

  /// Makes one GPU for each of `ranks` ranks; each GPU holds `places` CTAs.
  LaunchModel(int ranks, int places, std::uint64_t seed)
      : gpus_(static_cast<std::size_t>(ranks)), random_(seed) {
    for (Gpu& gpu : gpus_) gpu.free = places;
  }

  /// A collective in steps, such as an all-reduce. Each CTA of a member exchanges steps with the
  /// CTA of the same index at every other member. It posts up to `lead` steps ahead, and ends a
  /// step when all members have posted it. One more CTA exchanges signatures. Kernels of one team
  /// wait for no more than this. Those among teams also wait for all CTAs of their grid.
  struct TeamCall {
    std::vector<int> members;
    int ctas = 1;  // without the CTA of signatures
    std::uint64_t steps = 1;
    std::uint64_t lead = 1;
  };

  /// Passed as `stream` for launches that wait only for those of their own communicator.
  static constexpr int kNoStream = -1;

  /// Enqueues a launch of a communicator at a rank. It runs after the communicator's earlier
  /// launches at this rank, and after all earlier launches on the same stream. The host of a rank
  /// makes its calls in the order of the calls to this function.
  void enqueue(int rank, int communicator, const Launch& launch, int stream = kNoStream) {
    gpus_[static_cast<std::size_t>(rank)].launches.push_back(make(communicator, launch, stream));
  }
  void enqueue(int rank, int communicator, const TeamCall& call, int stream = kNoStream) {
    Running made{communicator, stream, std::vector<Cta>(static_cast<std::size_t>(call.ctas) + 1),
                 call.members};
    for (int index = 0; index < call.ctas; ++index) {
      made.ctas[static_cast<std::size_t>(index)].steps = {index, call.steps, call.lead};
    }
    made.ctas.back().steps = {kSignatures, 1, 1};
    gpus_[static_cast<std::size_t>(rank)].launches.push_back(std::move(made));
  }

  /// Runs until nothing can move; returns whether all launches have ended.
  bool run() {
    for (;;) {
      std::vector<std::size_t> order(gpus_.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random_);
      bool moved = false;
      bool left = false;
      for (const std::size_t rank : order) {
        moved = advance(static_cast<int>(rank)) || moved;
        left = left || !gpus_[rank].launches.empty();
      }
      if (!left) return true;
      if (!moved) return false;
    }
  }

 private:
  /// One channel's part of one message. It has `left` slots, which hold packets if `in_packets` is
  /// set. If `asks` is set, the first slot waits for the receiver's offer.
  struct Part {
    std::uint64_t left;
    bool asks;
    bool in_packets;
  };
  /// Parts that one channel still has to send to, or receive from, one peer.
  struct Stream {
    bool sends;
    int peer;
    int channel = 0;
    std::uint32_t depth = 0;
    std::uint32_t packet_depth = 0;
    std::uint32_t credit_step = 1;
    bool has_started = false;  // has moved a slot in this launch
    bool is_pulled = false;    // receivers may copy from the sender's window (one_gpu)
    bool is_exposed = false;   // the receiver has not copied all yet
    std::deque<Part> parts = {};

    bool done() const { return parts.empty() && !is_exposed; }
  };
  /// Index of the CTA that exchanges signatures.
  static constexpr int kSignatures = -1;
  /// Steps that a CTA of a team call has not ended.
  struct Steps {
    int index = 0;
    std::uint64_t left = 0;
    std::uint64_t lead = 1;
  };
  struct Cta {
    bool resident = false;
    std::vector<Stream> streams;
    Steps steps;
    bool done() const {
      if (steps.left > 0) return false;
      for (const Stream& stream : streams) {
        if (!stream.done()) return false;
      }
      return true;
    }
  };
  struct Running {
    int communicator;
    int stream;
    std::vector<Cta> ctas;
    std::vector<int> members = {};  // ranks of a team call
  };
  /// Steps of one CTA index of a rank, over all team calls of a communicator.
  struct Progress {
    std::uint64_t posted = 0;
    std::uint64_t ended = 0;
  };
  struct Gpu {
    int free = 0;
    std::deque<Running> launches;
  };
  struct Channel {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t offered = 0;  // 1 + the first slot of the offered message
    std::uint64_t packets_sent = 0;
    std::uint64_t packets_received = 0;
    std::uint64_t packet_credit = 0;
  };

  /// Returns the CTA that moves a stream.
  static std::size_t cta_of(const Launch& launch, int stream) {
    const int senders = launch.run[launch.send_runs].stream;
    if (launch.send_ctas == 0) return static_cast<std::size_t>(stream % launch.ctas);
    if (stream < senders) return static_cast<std::size_t>(stream % launch.send_ctas);
    const int others = launch.ctas - launch.send_ctas;
    return static_cast<std::size_t>(launch.send_ctas + (stream - senders) % others);
  }
  static void add_slots(Running& made, const Launch& launch, bool far, int first_stream,
                        Stream stream, std::uint64_t bytes) {
    const kernels::ChannelLayout& channels = far ? launch.far_channels : launch.channels;
    const auto cut = kernels::cut_over_channels(channels, bytes);
    for (int channel = 0; channel < cut.channels; ++channel) {
      const std::uint64_t begin = static_cast<std::uint64_t>(channel) * cut.piece;
      const std::uint64_t part = std::min(cut.piece, bytes - begin);
      const bool in_packets = bytes <= channels.most_packet_bytes;
      const std::uint64_t slot_bytes = in_packets ? channels.packet_bytes : channels.slot_bytes;
      const std::uint64_t slots = (part + slot_bytes - 1) / slot_bytes;
      auto& streams = made.ctas.at(cta_of(launch, first_stream + channel)).streams;
      stream.channel = channel;
      stream.depth = channels.depth;
      stream.packet_depth = channels.packet_depth;
      stream.credit_step = channels.credit_step;
      const auto same = [&](const Stream& other) {
        return other.sends == stream.sends && other.peer == stream.peer && other.channel == channel;
      };
      const auto found = std::find_if(streams.begin(), streams.end(), same);
      Stream& one = found == streams.end() ? streams.emplace_back(stream) : *found;
      const bool is_long = bytes >= channels.least_direct_bytes;
      const bool needs_offer = !stream.is_pulled || launch.pulled_parts < kernels::kPulledParts;
      one.parts.push_back({slots, is_long && needs_offer, in_packets});
    }
  }
  static Running make(int communicator, const Launch& launch, int stream) {
    Running made{communicator, stream, std::vector<Cta>(static_cast<std::size_t>(launch.ctas))};
    for (int run = 0; run < launch.runs; ++run) {
      const kernels::MessageRun& own = launch.run[run];
      const bool far = own.team_member == 0;
      for (int i = own.message; i < launch.run[run + 1].message; ++i) {
        const kernels::Message& message = launch.message[i];
        Stream moved{run < launch.send_runs, message.peer};
        moved.is_pulled = moved.sends && launch.pulled_parts > 0;
        add_slots(made, launch, far, own.stream, moved, message.bytes);
      }
    }
    for (const Cta& cta : made.ctas) {
      const auto streams = static_cast<int>(cta.streams.size());
      if (streams * launch.stream_warps > kernels::kMaxWarps) {
        throw std::logic_error("a CTA has more streams than its warps can move");
      }
    }
    return made;
  }

  /// Returns whether all earlier launches of the communicator and of the stream have ended.
  bool may_start(const Gpu& gpu, std::size_t index) const {
    for (std::size_t i = 0; i < index; ++i) {
      const Running& before = gpu.launches[i];
      const Running& own = gpu.launches[index];
      const bool shares_stream = own.stream != kNoStream && before.stream == own.stream;
      if (shares_stream || before.communicator == own.communicator) return false;
    }
    return true;
  }

  bool advance(int rank) {
    Gpu& gpu = gpus_[static_cast<std::size_t>(rank)];
    bool moved = false;
    for (std::size_t i = 0; i < gpu.launches.size(); ++i) {
      if (!may_start(gpu, i)) continue;
      Running& launch = gpu.launches[i];
      for (Cta& cta : launch.ctas) {
        if (!cta.resident && gpu.free > 0) {
          cta.resident = true;
          --gpu.free;
          moved = true;
        }
        if (!cta.resident || random_() % 4 == 0) continue;
        for (Stream& stream : cta.streams) moved = step(rank, launch, stream) || moved;
        moved = step(rank, launch, cta.steps) || moved;
      }
      moved = retire(gpu, launch) || moved;
    }
    const auto ended = [](const Running& launch) { return launch.ctas.empty(); };
    gpu.launches.erase(std::remove_if(gpu.launches.begin(), gpu.launches.end(), ended),
                       gpu.launches.end());
    // A step that the draw has skipped may still be possible.
    return moved || any_can_move(rank);
  }
  static bool retire(Gpu& gpu, Running& launch) {
    const auto done = [&](const Cta& cta) { return cta.resident && cta.done(); };
    const auto gone = std::remove_if(launch.ctas.begin(), launch.ctas.end(), done);
    const auto count = static_cast<int>(launch.ctas.end() - gone);
    launch.ctas.erase(gone, launch.ctas.end());
    gpu.free += count;
    return count > 0;
  }
  bool any_can_move(int rank) {
    Gpu& gpu = gpus_[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < gpu.launches.size(); ++i) {
      if (!may_start(gpu, i)) continue;
      for (const Cta& cta : gpu.launches[i].ctas) {
        if (!cta.resident) continue;
        if (cta.done() || can_move(rank, gpu.launches[i], cta.steps)) return true;
        for (const Stream& stream : cta.streams) {
          if (can_move(rank, gpu.launches[i], stream)) return true;
        }
      }
    }
    return false;
  }

  Channel& channel(int rank, const Running& launch, const Stream& stream) {
    const int from = stream.sends ? rank : stream.peer;
    const int to = stream.sends ? stream.peer : rank;
    return channels_[{launch.communicator, from, to, stream.channel}];
  }
  bool can_move(int rank, const Running& launch, const Stream& stream) {
    if (stream.done()) return false;
    const Channel& on = channel(rank, launch, stream);
    if (stream.parts.empty()) return on.received == on.sent;
    if (stream.parts.front().in_packets) {
      if (!stream.sends) return on.packets_sent > on.packets_received || owes_credit(on, stream);
      return on.packets_sent - on.packet_credit < stream.packet_depth;
    }
    if (!stream.sends) return on.sent > on.received || owes_offer(on, stream);
    if (stream.parts.front().asks && on.offered != on.sent + 1) return false;
    // Between teams, credit is returned for half a ring at a time (credit_step).
    return on.sent - (on.received - on.received % stream.credit_step) < stream.depth;
  }
  bool step(int rank, const Running& launch, Stream& stream) {
    if (!can_move(rank, launch, stream)) return false;
    Channel& on = channel(rank, launch, stream);
    if (stream.parts.empty()) {
      stream.is_exposed = false;
      return true;
    }
    Part& part = stream.parts.front();
    stream.is_exposed = stream.is_exposed || (stream.is_pulled && !part.in_packets);
    if (part.in_packets) {
      if (!stream.sends && owes_credit(on, stream)) {
        on.packet_credit = on.packets_received;
        return true;
      }
      ++(stream.sends ? on.packets_sent : on.packets_received);
    } else {
      if (!stream.sends && owes_offer(on, stream)) {
        on.offered = on.received + 1;
        return true;
      }
      ++(stream.sends ? on.sent : on.received);
    }
    stream.has_started = true;
    part.asks = false;
    if (--part.left == 0) stream.parts.pop_front();
    return true;
  }
  Progress& progress(int rank, const Running& launch, const Steps& steps) {
    return progress_[{launch.communicator, steps.index, rank}];
  }
  bool can_post(int rank, const Running& launch, const Steps& steps) {
    const Progress& own = progress(rank, launch, steps);
    return own.posted - own.ended < std::min(steps.lead, steps.left);
  }
  bool can_end(int rank, const Running& launch, const Steps& steps) {
    const std::uint64_t ended = progress(rank, launch, steps).ended;
    return steps.left > 0 &&
           std::all_of(launch.members.begin(), launch.members.end(),
                       [&](int member) { return progress(member, launch, steps).posted > ended; });
  }
  bool can_move(int rank, const Running& launch, const Steps& steps) {
    return can_post(rank, launch, steps) || can_end(rank, launch, steps);
  }
  bool step(int rank, const Running& launch, Steps& steps) {
    Progress& own = progress(rank, launch, steps);
    if (can_post(rank, launch, steps)) {
      ++own.posted;
      return true;
    }
    if (!can_end(rank, launch, steps)) return false;
    ++own.ended;
    --steps.left;
    return true;
  }
  /// Returns whether the receiver must return credit for packets: before this launch has moved a
  /// slot for any slot, later for every second slot.
  static bool owes_credit(const Channel& on, const Stream& stream) {
    return on.packets_received - on.packet_credit >= (stream.has_started ? 2u : 1u);
  }
  static bool owes_offer(const Channel& on, const Stream& stream) {
    return stream.parts.front().asks && on.offered != on.received + 1;
  }

  std::vector<Gpu> gpus_;
  std::map<std::tuple<int, int, int, int>, Channel> channels_;
  std::map<std::tuple<int, int, int>, Progress> progress_;
  std::mt19937_64 random_;
};

}  // namespace oriel::test
