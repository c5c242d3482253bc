// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/support/nic_faults.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "net/fabric/wire_fabric.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/wire/wire.hpp"

namespace oriel::net::test {
namespace {

class FaultWire;

struct Wires {
  std::mutex mutex;
  std::multimap<const NicCore*, FaultWire*> of;
  static Wires& instance() {
    static Wires wires;
    return wires;
  }
};

/// NICs that tests have stopped. Takes no lock, since a process may fork while threads drive NICs.
class StoppedNics {
 public:
  static StoppedNics& instance() {
    static StoppedNics stopped;
    return stopped;
  }
  /// Calls `turn` unless the NIC is stopped. Returns the result of `turn`, or false.
  template <class Turn>
  bool pass(const NicCore* nic, Turn turn) {
    std::atomic<int>& turns = turns_of(nic);
    ++turns;
    const bool any = !contains(nic) && turn();
    --turns;
    return any;
  }
  void add(const NicCore* nic) {
    if (contains(nic)) return;
    const bool is_added = std::any_of(nics_.begin(), nics_.end(), [&](auto& place) {
      const NicCore* none = nullptr;
      return place.compare_exchange_strong(none, nic);
    });
    if (!is_added) std::abort();
    while (turns_of(nic) != 0) std::this_thread::yield();
  }
  void remove(const NicCore* nic) {
    for (auto& place : nics_) {
      const NicCore* found = nic;
      place.compare_exchange_strong(found, nullptr);
    }
  }

 private:
  bool contains(const NicCore* nic) const {
    return std::any_of(nics_.begin(), nics_.end(), [&](auto& place) { return place == nic; });
  }
  std::atomic<int>& turns_of(const NicCore* nic) {
    return turns_[std::hash<const NicCore*>()(nic) / alignof(std::max_align_t) % turns_.size()];
  }

  std::array<std::atomic<const NicCore*>, 16> nics_{};
  std::array<std::atomic<int>, 251> turns_{};  // turns in progress, of NICs with this hash
};

/// State of the requests that one of the NIC's queues has sent in this epoch.
struct Sending {
  std::uint32_t epoch = 0;
  std::uint64_t next = 0;      // one past the highest request number seen
  std::uint64_t answered = 0;  // one past the highest answered number
  std::uint64_t count = 0;     // requests sent since the faults were set
  std::optional<TimePoint> due;
  std::optional<std::uint64_t> failed;  // number of the request that fails
  Syndrome syndrome = Syndrome::none;
  bool is_swallowed = false;
  bool is_reported = false;
};

struct Held {
  WireAddress to;
  WireMessage message;
  TimePoint due;
};

class FaultWire final : public Wire {
 public:
  FaultWire(const NicCore& nic, std::unique_ptr<Wire> inner) : nic_(nic), inner_(std::move(inner)) {
    Wires& wires = Wires::instance();
    const std::lock_guard lock(wires.mutex);
    wires.of.emplace(&nic, this);
  }
  ~FaultWire() override {
    StoppedNics::instance().remove(&nic_);  // another NIC may get its address
    Wires& wires = Wires::instance();
    const std::lock_guard lock(wires.mutex);
    std::erase_if(wires.of, [this](const auto& one) { return one.second == this; });
  }
  void set(NicFaults faults) {
    const std::lock_guard lock(mutex_);
    faults_ = std::move(faults);
    random_.seed(faults_.seed);
    answers_.clear();
    for (auto& [queue, sending] : sending_) sending.count = 0;
  }

  void add_traffic(NicTraffic& sum) {
    const std::lock_guard lock(mutex_);
    sum.requests += traffic_.requests;
    sum.retransmitted += traffic_.retransmitted;
    sum.probes += traffic_.probes;
    sum.payload_bytes += traffic_.payload_bytes;
    sum.refused += traffic_.refused;
    sum.rendezvous_reads += traffic_.rendezvous_reads;
    sum.read_bytes += traffic_.read_bytes;
    if (dynamic_cast<const WireFabric*>(inner_.get()) == nullptr) return;
    sum.fabric_messages += traffic_.fabric_messages;
  }

  WireAddress address() const override { return inner_->address(); }
  bool send(WireAddress to, WireMessage& message) override {
    const std::lock_guard lock(mutex_);
    if (std::holds_alternative<WireRequest>(message.body)) return send_request(to, message);
    return send_response(to, message);
  }
  bool receive(WireMessage& message) override {
    const std::lock_guard lock(mutex_);
    release();
    if (inner_->receive(message)) {
      note_received(message);
      return true;
    }
    return send_failure(message);
  }
  void end_receive() override { inner_->end_receive(); }
  void end_turn() override {
    {
      const std::lock_guard lock(mutex_);
      release();
    }
    inner_->end_turn();
  }
  WireSign sign_of(WireAddress peer) override { return inner_->sign_of(peer); }
  bool can_read(WireAddress peer) override { return inner_->can_read(peer); }
  std::optional<WireSource> expose(WireAddress peer, const std::byte* from,
                                   std::size_t bytes) override {
    return inner_->expose(peer, from, bytes);
  }
  void revoke(WireAddress peer, const WireSource& source) override { inner_->revoke(peer, source); }
  std::shared_ptr<RendezvousRead> rendezvous_read(WireAddress peer, const WireSource& source,
                                                  const WireTarget& target) override {
    {
      const std::lock_guard lock(mutex_);
      ++traffic_.rendezvous_reads;
      traffic_.read_bytes += target.bytes;
    }
    return inner_->rendezvous_read(peer, source, target);
  }
  bool is_reading(std::uint32_t key) override { return inner_->is_reading(key); }
  std::vector<WireAddress> reads_by(std::uint32_t key) override { return inner_->reads_by(key); }
  bool cut(std::span<const WireAddress> peers) override { return inner_->cut(peers); }

 private:
  Duration random_below(Duration limit) {
    if (limit <= Duration::zero()) return {};
    return Duration(
        static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit.count())));
  }
  bool pass_on(WireAddress to, WireMessage& message) {
    const std::uint64_t bytes =
        std::visit([](const auto& body) { return body.payload.size(); }, message.body);
    if (!inner_->send(to, message)) return false;
    ++traffic_.fabric_messages;
    traffic_.payload_bytes += bytes;
    return true;
  }
  static bool is_probe(const WireRequest& request) {
    return request.kind == WorkKind::write && request.bytes == 0 && request.key == 0;
  }

  bool send_request(WireAddress to, WireMessage& message) {
    const auto& request = std::get<WireRequest>(message.body);
    Sending& sending = sending_[request.from_queue];
    if (sending.epoch != request.epoch) {
      const std::uint64_t count = sending.count;
      sending = {};
      sending.epoch = request.epoch;
      sending.next = sending.answered = request.number;
      sending.count = count;
    }
    const std::uint64_t number = request.number;
    const bool is_new = number >= sending.next, probes = is_probe(request);
    if (is_lost(sending, number)) return note_sent(sending, number, probes);
    if (is_new && !probes) {
      if (!may_go(sending, request)) return false;
      plan_failure(sending, request);
      if (is_lost(sending, number)) return note_sent(sending, number, probes);
    }
    if (!pass_on(to, message)) return false;
    sending.count += is_new && !probes ? 1 : 0;
    return note_sent(sending, number, probes);
  }
  static bool is_lost(const Sending& sending, std::uint64_t number) {
    if (!sending.failed.has_value() || number < *sending.failed) return false;
    return number > *sending.failed || sending.is_swallowed;
  }
  bool note_sent(Sending& sending, std::uint64_t number, bool probes) {
    const bool is_new = number >= sending.next;
    ++traffic_.requests;
    traffic_.retransmitted += is_new ? 0 : 1;
    traffic_.probes += probes && is_new ? 1 : 0;
    sending.next = std::max(sending.next, number + 1);
    sending.due.reset();
    return true;
  }
  bool may_go(Sending& sending, const WireRequest& request) {
    const TimePoint now = faults_.clock->now();
    if (!sending.due.has_value()) {
      sending.due = now;
      for (const NicFaults::Delay& delay : faults_.delays) {
        if (!delay.place.covers(request.from_queue, sending.count)) continue;
        *sending.due += delay.duration + random_below(delay.random);
      }
    }
    return now >= *sending.due && !(faults_.skip_turns && random_() % 2 == 0);
  }
  void plan_failure(Sending& sending, const WireRequest& request) {
    for (const NicFaults::Fail& fail : faults_.fails) {
      if (!fail.place.covers(request.from_queue, sending.count)) continue;
      sending.failed = request.number;
      sending.syndrome = fail.syndrome;
      sending.is_swallowed = !fail.after_delivery;
      return;
    }
  }
  void note_received(WireMessage& message) {
    if (const auto* const request = std::get_if<WireRequest>(&message.body)) {
      owners_[request->from_queue] = request->to_queue;
      if (request->kind != WorkKind::write)
        pending_read_.emplace(request->from_queue, request->number);
      return;
    }
    auto& response = std::get<WireResponse>(message.body);
    traffic_.refused += response.not_mapped ? 1 : 0;
    const auto it = sending_.find(response.to_queue);
    if (it == sending_.end() || it->second.epoch != response.epoch) return;
    Sending& sending = it->second;
    if (response.not_ready || response.not_mapped) return;
    sending.answered = std::max(sending.answered, response.number + 1);
    if (sending.failed == response.number) response.syndrome = sending.syndrome;
  }
  /// Returns the error answer of a swallowed request, once all earlier requests have been answered.
  bool send_failure(WireMessage& message) {
    for (auto& [queue, sending] : sending_) {
      if (!sending.failed.has_value() || !sending.is_swallowed || sending.is_reported) continue;
      if (sending.answered < *sending.failed) continue;
      sending.is_reported = true;
      WireResponse response;
      response.to_queue = queue;
      response.epoch = sending.epoch;
      response.number = *sending.failed;
      response.syndrome = sending.syndrome;
      message.body = std::move(response);
      return true;
    }
    return false;
  }

  bool send_response(WireAddress to, WireMessage& message) {
    auto& response = std::get<WireResponse>(message.body);
    if (is_response_lost(owners_[response.to_queue])) return true;
    const bool rendezvous_reads = pending_read_.erase({response.to_queue, response.number}) != 0;
    const Duration delay = rendezvous_reads ? faults_.response_delay : Duration{};
    if (delay == Duration::zero() && held_.empty()) return pass_on(to, message);
    std::visit([](auto& body) { body.payload.own(); }, message.body);
    held_.push_back({to, std::move(message), faults_.clock->now() + delay});
    return true;
  }
  bool is_response_lost(std::uint32_t own) {
    const std::uint64_t nth = ++answers_[own];
    return std::any_of(faults_.lost_responses.begin(), faults_.lost_responses.end(),
                       [&](const NicFaults::LoseResponse& fault) {
                         return (fault.queue == 0 || fault.queue == own) && nth >= fault.nth &&
                                nth - fault.nth < fault.count;
                       });
  }
  void release() {
    const TimePoint now = faults_.clock->now();
    for (; !held_.empty() && held_.front().due <= now; held_.pop_front()) {
      if (!pass_on(held_.front().to, held_.front().message)) break;
    }
  }

  std::mutex mutex_;
  const NicCore& nic_;
  std::unique_ptr<Wire> inner_;
  NicTraffic traffic_;  // fabric_messages counts the messages of any wire here
  NicFaults faults_;
  std::mt19937_64 random_;
  std::map<std::uint32_t, Sending> sending_;        // by the NIC's queue
  std::map<std::uint32_t, std::uint32_t> owners_;   // from a peer's queue to the NIC's queue
  std::map<std::uint32_t, std::uint64_t> answers_;  // by the NIC's queue
  /// Reads and atomics of peers' queues that are not answered yet: queue and request number.
  std::set<std::pair<std::uint32_t, std::uint64_t>> pending_read_;
  std::deque<Held> held_;
};

}  // namespace

void set_faults(const NicCore& nic, NicFaults faults) {
  Wires& wires = Wires::instance();
  const std::lock_guard lock(wires.mutex);
  const auto [begin, end] = wires.of.equal_range(&nic);
  for (auto it = begin; it != end; ++it) it->second->set(faults);
}

void delay_responses(const NicCore& nic, const Clock& clock, Duration delay) {
  NicFaults faults;
  faults.clock = &clock;
  faults.response_delay = delay;
  set_faults(nic, faults);
}

void stop_nic(const NicSoft& nic) {
  StoppedNics::instance().add(&nic);
}

void resume_nic(const NicSoft& nic) {
  StoppedNics::instance().remove(&nic);
}

NicTraffic traffic(const NicCore& nic) {
  Wires& wires = Wires::instance();
  const std::lock_guard lock(wires.mutex);
  NicTraffic sum;
  const auto [begin, end] = wires.of.equal_range(&nic);
  for (auto it = begin; it != end; ++it) it->second->add_traffic(sum);
  return sum;
}

// Wraps NicCore::add_wire, and declares the real function: see the linker's --wrap.
std::uint32_t real_add_wire(NicCore* nic,
                            std::unique_ptr<Wire> wire) asm("__real_" ORIEL_TEST_ADD_WIRE);
std::uint32_t wrapped_add_wire(NicCore* nic,
                               std::unique_ptr<Wire> wire) asm("__wrap_" ORIEL_TEST_ADD_WIRE);

std::uint32_t wrapped_add_wire(NicCore* nic, std::unique_ptr<Wire> wire) {
  return real_add_wire(nic, std::make_unique<FaultWire>(*nic, std::move(wire)));
}

// Wraps NicSoft::progress in the same way.
bool real_progress(NicSoft* nic) asm("__real_" ORIEL_TEST_PROGRESS);
bool wrapped_progress(NicSoft* nic) asm("__wrap_" ORIEL_TEST_PROGRESS);

bool wrapped_progress(NicSoft* nic) {
  return StoppedNics::instance().pass(nic, [nic] { return real_progress(nic); });
}

}  // namespace oriel::net::test
