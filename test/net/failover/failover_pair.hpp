// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/copy/copy_engine_share.hpp"
#include "net/failover/failover_channel.hpp"
#include "net/failover/failover_queue.hpp"
#include "net/soft/nic_pair.hpp"
#include "net/wire/wire_format.hpp"

namespace oriel::net::test {

/// Faults that a test applies to the messages that one NIC sends.
struct WireFault {
  bool cut = false;   ///< messages are lost
  bool hold = false;  ///< messages are kept until release()
  /// If not 0, limits the bandwidth: each pass() adds this many bytes of credit. Messages go out in
  /// order, each once the credit covers it.
  std::uint64_t bytes_per_pass = 0;
  std::uint64_t passed = 0;  ///< bytes sent under this limit
  WireSign sign;             ///< sign of the peer that the NIC sees
  std::deque<std::pair<WireAddress, WireMessage>> held;
};

class FaultyWire final : public Wire {
 public:
  FaultyWire(std::unique_ptr<Wire> inner, WireFault& fault)
      : inner_(std::move(inner)), fault_(fault) {}
  WireAddress address() const override { return inner_->address(); }
  bool send(WireAddress to, WireMessage& message) override {
    message.place = ++place_;
    if (fault_.cut) return true;
    if (!fault_.hold && fault_.bytes_per_pass == 0) return inner_->send(to, message);
    payload_of(message).own();
    fault_.held.emplace_back(to, std::move(message));
    return true;
  }
  bool receive(WireMessage& message) override { return inner_->receive(message); }
  void end_receive() override { inner_->end_receive(); }
  WireSign sign_of(WireAddress /*peer*/) override { return fault_.sign; }
  void pass() {
    if (fault_.bytes_per_pass == 0 || fault_.hold) return;
    due_ += fault_.bytes_per_pass;
    for (auto& held = fault_.held; !held.empty(); held.pop_front()) {
      const std::uint64_t bytes = kHeadBytes + payload_of(held.front().second).size();
      if (due_ < bytes) return;
      due_ -= bytes;
      fault_.passed += bytes;
      if (!fault_.cut) static_cast<void>(inner_->send(held.front().first, held.front().second));
    }
    due_ = 0;
  }
  void release() {
    for (auto& [to, message] : fault_.held) static_cast<void>(inner_->send(to, message));
    fault_.held.clear();
  }

 private:
  static constexpr std::uint64_t kHeadBytes = 64;
  std::unique_ptr<Wire> inner_;
  WireFault& fault_;
  std::uint64_t due_ = 0;    // credit toward the first held message
  std::uint64_t place_ = 0;  // place of the last message sent
};

/// Channel that loses, duplicates, delays and reorders messages, deterministic for a seed.
struct LossyPost {
  double loss = 0;
  double duplication = 0;
  int delay_most = 0;  ///< in calls of receive()
  bool cut = false;
  std::function<void(int to, Bytes& message)> forge;  ///< changes a message that an end receives
  std::mt19937_64 random;
  struct Letter {
    Bytes bytes;
    int wait;
  };
  std::array<std::vector<Letter>, 2> inbox;

  explicit LossyPost(std::uint64_t seed = 1) : random(seed) {}
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random) < p; }
  void post(int to, ByteView message) {
    if (cut) return;
    for (int copies = chance(duplication) ? 2 : 1; copies > 0; --copies) {
      if (chance(loss)) continue;
      const int wait = delay_most == 0 ? 0 : static_cast<int>(random() % (delay_most + 1u));
      inbox[to].push_back({Bytes(message.begin(), message.end()), wait});
      if (forge) forge(to, inbox[to].back().bytes);
    }
  }
  bool take(int at, Bytes& message) {
    for (auto it = inbox[at].begin(); it != inbox[at].end(); ++it) {
      if (it->wait-- > 0) continue;
      message = std::move(it->bytes);
      inbox[at].erase(it);
      return true;
    }
    return false;
  }
};

class LossyChannel final : public FailoverChannel {
 public:
  LossyChannel(LossyPost& post, int self) : post_(post), self_(self) {}
  void send(ByteView message) override { post_.post(1 - self_, message); }
  bool receive(Bytes& message) override { return post_.take(self_, message); }

 private:
  LossyPost& post_;
  int self_;
};

/// Keeps the last statement that its end has sent over `inner`.
class WatchedChannel final : public FailoverChannel {
 public:
  explicit WatchedChannel(FailoverChannel& inner) : inner_(inner) {
    last_sent_.epoch = 1;
    last_sent_.stage = PathStage::running;
    last_sent_.usable_now = 0xff;
  }
  void send(ByteView message) override {
    last_sent_ = decode_statement(message).value();
    inner_.send(message);
  }
  bool receive(Bytes& message) override { return inner_.receive(message); }
  const PathStatement& last_sent() const { return last_sent_; }
  std::uint32_t epoch() const { return last_sent_.epoch; }
  bool is_running() const { return last_sent_.stage == PathStage::running; }
  bool is_usable(std::size_t path) const { return (last_sent_.usable_now >> path & 1) != 0; }

 private:
  FailoverChannel& inner_;
  PathStatement last_sent_;
};

/// Makes a WQE fail with `syndrome`; `is_done` selects whether its operation is executed.
inline void fail_wqe(NicSoft& nic, const FaultPlace& place, bool is_done,
                     Syndrome syndrome = Syndrome::transport_retry) {
  NicFaults faults;
  faults.fails = {{place, syndrome, is_done}};
  set_faults(nic, std::move(faults));
}

/// Delays each request of a queue by `delay`.
inline void delay_queue(NicSoft& nic, std::uint32_t queue, Duration delay, const Clock& clock) {
  NicFaults faults;
  faults.clock = &clock;
  faults.delays = {{{queue}, delay, {}}};
  set_faults(nic, std::move(faults));
}

/// Creates the engine of a rank's GPU memory; if empty, the memory is the host's.
using MakeEngine = std::function<std::unique_ptr<CopyEngine>()>;

/// Rank with one NIC for each path; its memory is registered with every NIC.
struct FailoverRank {
  FailoverRank(std::vector<std::unique_ptr<LocalWires>>& paths, const Clock& clock,
               std::size_t words, const MakeEngine& make_engine = {})
      : memory(words), engine(make_engine ? make_engine() : nullptr) {
    for (const auto& exchange : paths) {
      faults.push_back(std::make_unique<WireFault>());
      NicSoft::Options options{.clock = &clock};
      if (engine != nullptr) {
        shares.push_back(std::make_unique<CopyEngineShare>(*engine, engine_mutex));
        options.gpu = shares.back().get();
      }
      nics.push_back(std::make_unique<NicSoft>(std::move(options)));
      auto wire = std::make_unique<FaultyWire>(exchange->attach(), *faults.back());
      wires.push_back(wire.get());
      nics.back()->add_wire(std::move(wire));
      MemoryRange range;
      range.address = reinterpret_cast<std::uint64_t>(memory.data());
      range.bytes = words * 8;
      range.memory = reinterpret_cast<std::byte*>(memory.data());
      range.access = kAllAccess;
      if (engine != nullptr) range.place = MemoryPlace::gpu;
      range.own_words = engine != nullptr;  // no test thread changes words of the peer's atomics
      keys.push_back(nics.back()->register_memory(range).value());
    }
    region.address = reinterpret_cast<std::uint64_t>(memory.data());
    region.bytes = words * 8;
    region.keys[0] = keys[0];
  }
  std::vector<std::uint64_t> memory;
  std::unique_ptr<CopyEngine> engine;
  std::mutex engine_mutex;
  std::vector<std::unique_ptr<CopyEngineShare>> shares;
  std::vector<std::unique_ptr<WireFault>> faults;
  std::vector<std::unique_ptr<NicSoft>> nics;
  std::vector<FaultyWire*> wires;
  std::vector<std::uint32_t> keys;
  dq::Region region;
};

struct FailoverPairOptions {
  FailoverPairOptions() { queue.receives = 64; }

  SendQueue::Options queue;
  PathPolicy health;
  AgreementPolicy agreement;
  std::size_t paths = 2;
  std::size_t words = 4096;
  std::uint64_t seed = 1;
  MakeEngine make_engine;           ///< called for each rank
  std::function<void()> turn = {};  ///< called in each step
};

/// Two ranks with a NIC for each path (two by default) and one queue. The calling thread drives
/// them on a clock that each step advances by 100 us.
struct FailoverPair {
  using Options = FailoverPairOptions;
  static constexpr Duration kStep = std::chrono::microseconds(100);

  explicit FailoverPair(const Options& options = Options())
      : exchanges(make_exchanges(options.paths)),
        post(options.seed),
        channel_a(post, 0),
        channel_b(post, 1),
        sent_there(channel_a),
        sent_back(channel_b),
        turn(options.turn),
        a(exchanges, clock, options.words, options.make_engine),
        b(exchanges, clock, options.words, options.make_engine),
        there(make(options, a, sent_there, 7)),
        back(make(options, b, sent_back, 3)) {
    for (std::size_t i = 1; i < options.paths; ++i) {
      there->aliases(i).add_local(a.keys[0], a.keys[i]);
      there->aliases(i).add_remote(b.keys[0], b.keys[i]);
      back->aliases(i).add_local(b.keys[0], b.keys[i]);
      back->aliases(i).add_remote(a.keys[0], a.keys[i]);
    }
    REQUIRE(there->connect(back->ends()).ok());
    REQUIRE(back->connect(there->ends()).ok());
    control.timeout_ns = 1;
  }
  static std::vector<std::unique_ptr<LocalWires>> make_exchanges(std::size_t count) {
    std::vector<std::unique_ptr<LocalWires>> made;
    for (std::size_t i = 0; i < count; ++i) made.push_back(std::make_unique<LocalWires>());
    return made;
  }
  std::unique_ptr<FailoverQueue> make(const Options& options, FailoverRank& rank,
                                      FailoverChannel& channel, int peer) {
    FailoverQueue::Options made;
    made.queue = options.queue;
    made.queue.peer = peer;
    made.health = options.health;
    made.agreement = options.agreement;
    made.channel = &channel;
    made.clock = &clock;
    for (std::size_t i = 0; i < options.paths; ++i) {
      made.paths.push_back({rank.nics[i].get(), 0, "nic" + std::to_string(i)});
    }
    return FailoverQueue::create(std::move(made)).value();
  }

  bool step() {
    bool any = false;
    for (const auto* rank : {&a, &b}) {
      for (const auto& nic : rank->nics) any = nic->progress() || any;
      for (FaultyWire* const wire : rank->wires) wire->pass();
    }
    any = there->progress() || any;
    any = back->progress() || any;
    if (turn) turn();
    clock.advance(kStep);
    return any;
  }
  void run_for(Duration time) {
    for (const TimePoint end = clock.now() + time; clock.now() < end;) step();
  }
  /// Steps until `done()` is true. Returns false if this takes longer than `most`.
  template <class Done>
  bool run_until(const Done& done, Duration most = std::chrono::seconds(60)) {
    for (const TimePoint end = clock.now() + most; clock.now() < end; step()) {
      if (done()) return true;
    }
    return done();
  }
  const dq::QueueView& view() const { return there->view(); }
  dq::Transfer transfer(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return {a.region, from, b.region, to, bytes};
  }
  /// Returns the index up to which the queue at `view` is complete, as a producer sees it.
  static std::uint64_t completed(const dq::QueueView& view) {
    static_cast<void>(dq::detail::poll_completion<device::Memory>(view));
    return view.indexes->completed;
  }
  bool is_complete(std::uint64_t end) const { return completed(view()) >= end; }
  bool has_failed(const dq::QueueView& view) const {
    static_cast<void>(completed(view));
    return view.indexes->error != 0;
  }
  std::uint32_t epoch() const { return sent_there.epoch(); }
  int path() const { return there->pace().path; }
  bool both_on(int path) const {
    return sent_there.is_running() && sent_back.is_running() &&
           sent_there.epoch() == sent_back.epoch() && there->pace().path == path &&
           back->pace().path == path;
  }
  std::string states() const {
    std::string text;
    for (const bool other : {false, true}) {
      const FailoverQueue& queue = other ? *back : *there;
      const PathStatement& last = (other ? sent_back : sent_there).last_sent();
      text += std::string(" epoch ") + std::to_string(last.epoch) + " " + to_string(last.stage) +
              " path " + std::to_string(queue.pace().path) + " usable " +
              std::to_string(last.usable_now);
      if (const auto failure = queue.failure()) text += " " + failure->to_string();
    }
    return text;
  }

  ManualClock clock;
  std::vector<std::unique_ptr<LocalWires>> exchanges;
  LossyPost post;
  LossyChannel channel_a, channel_b;
  WatchedChannel sent_there, sent_back;
  std::function<void()> turn;
  FailoverRank a, b;
  std::unique_ptr<FailoverQueue> there, back;
  device::WaitControl control;
};

}  // namespace oriel::net::test
