// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/nic_soft.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/short_memory.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::net {

namespace {

// As long as a GPU may take for what was begun.
constexpr std::chrono::seconds kCopiesMost{30};
// As long as a peer that is alive may take for what is being fetched.
constexpr std::chrono::seconds kFetchesMost{5};
// After an abort nobody needs what is being fetched. But most peers are still there, and let go of
// it in this time, which spares them the end of their connections.
constexpr std::chrono::milliseconds kAbortedFetchesMost{100};
constexpr std::chrono::microseconds kPause{50};

// Where a NIC's keys and queue numbers begin: elsewhere than those of others.
std::uint32_t random_start() {
  std::uint32_t start = 0;
  // Without randomness, the same ones everywhere: less is found out, nothing else changes.
  static_cast<void>(sys().getrandom(&start, sizeof start, 0));
  return start;
}

}  // namespace

NicSoft::NicSoft(Options options) : last_number_(random_start() & 0xffffff) {
  context_.clock = options.clock;
  context_.gpu_mover = options.gpu;
  context_.keys = MemoryKeys(random_start());
  set_faults(std::move(options.faults));
}

NicSoft::~NicSoft() {
  context_.late.land_all();
  try {
    static_cast<void>(settle());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory to say why not
  }
}

/// Until it returns well what has begun to move may still touch memory.
Status NicSoft::settle() {
  if (context_.gpu_mover == nullptr) return {};
  return context_.gpu_mover->drain();
}

void NicSoft::set_faults(NicFaults faults) {
  const std::lock_guard lock(mutex_);
  context_.random.seed(faults.seed);
  context_.faults = std::move(faults);
}

void NicSoft::serve_gpu(DataMover& mover) {
  const std::lock_guard lock(mutex_);
  context_.gpu_mover = &mover;
}

std::uint32_t NicSoft::add_wire(std::unique_ptr<Wire> wire) {
  const std::lock_guard lock(mutex_);
  context_.wires.push_back(std::move(wire));
  return static_cast<std::uint32_t>(context_.wires.size() - 1);
}

WireAddress NicSoft::address(std::uint32_t wire) const {
  const std::lock_guard lock(mutex_);
  return wire < context_.wires.size() ? context_.wires[wire]->address() : WireAddress{};
}

std::uint32_t NicSoft::create_domain() {
  const std::lock_guard lock(mutex_);
  return context_.keys.add_domain();
}

Status NicSoft::destroy_domain(std::uint32_t domain) {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, queue] : queues_) {
    if (queue->setup().domain == domain) {
      return Error(ErrorCode::invalid_usage,
                   fmt::format("protection domain {} still has the queue {:#x}", domain, number));
    }
  }
  return context_.keys.remove_domain(domain);
}

Result<std::uint32_t> NicSoft::register_memory(std::uint32_t domain, const MemoryRange& range) {
  const std::lock_guard lock(mutex_);
  if (range.place == MemoryPlace::gpu && context_.gpu_mover == nullptr) {
    return Error(ErrorCode::invalid_argument, "memory of a GPU for a NIC that serves none");
  }
  return context_.keys.add(domain, range);
}

Status NicSoft::deregister_memory(std::uint32_t key) {
  std::unique_lock lock(mutex_);
  context_.late.land_all();
  const MemoryRange* const range = context_.keys.range_of(key);
  Status settled;
  if (range != nullptr && range->place == MemoryPlace::gpu) {
    settled = settle();
    context_.gpu_mover->forget(range->memory, range->bytes);
  } else if (range != nullptr) {
    end_fetches(lock, key);
  }
  context_.peers.forget(key);
  ORIEL_CHECK(context_.keys.remove(key));
  return settled;
}

Status NicSoft::map_peer_memory(std::uint64_t peer, std::uint32_t key, const MemoryRange& range) {
  const std::lock_guard lock(mutex_);
  return context_.peers.add(peer, key, range);
}

Status NicSoft::unmap_peer_memory(std::uint64_t peer, std::uint32_t key) {
  const std::lock_guard lock(mutex_);
  end_copies(peer, key);
  context_.peers.remove(peer, key);
  return settle();
}

/// What waits its turn behind work of the GPU's has to begin before its source may go.
void NicSoft::end_copies(std::uint64_t peer, std::uint32_t key) {
  if (context_.gpu_mover == nullptr || context_.stopped || context_.dead) return;
  const Clock& steady = SteadyClock::instance();
  const Deadline deadline = Deadline::after(kCopiesMost, steady);
  while (!deadline.expired(steady.now())) {
    bool needed = false;
    try {
      for (SoftQueue* const queue : order_) {
        needed = queue->needs(peer, key, context_.clock->now()) || needed;
      }
      if (!needed) return;
      static_cast<void>(context_.gpu_mover->flush());
    } catch (const std::exception&) {
      return fail_locked();
    }
    std::this_thread::yield();
  }
}

/// Neither a peer nor this NIC is to touch the memory any more.
void NicSoft::end_fetches(std::unique_lock<std::mutex>& lock, std::uint32_t key) {
  const auto borrowers = [&](bool lost) {
    return despite_short_memory([&] { return context_.lent.borrowers(key, lost); });
  };
  cut(borrowers(true));
  if (wait_until_none(lock, [&] { return is_fetched(key); })) return;
  std::vector<Borrower> whom = borrowers(false);
  for (std::uint32_t wire = 0; wire < context_.wires.size(); ++wire) {
    despite_short_memory([&] {
      for (const auto& peer : context_.wires[wire]->fetches_by(key)) {
        whom.push_back({wire, peer.value});
      }
    });
  }
  cut(whom);
}

bool NicSoft::is_fetched(std::uint32_t key) const {
  return context_.lent.is_lent(key) ||
         std::any_of(context_.wires.begin(), context_.wires.end(),
                     [&](const auto& wire) { return wire->is_fetching(key); });
}

/// Of a wait that began then. Of a NIC that is no more used all waits together take as long as one.
TimePoint NicSoft::patience_ends(TimePoint begin) {
  const bool is_aborted = context_.sends_nothing;
  if (!is_aborted && !context_.takes_nothing) return begin + kFetchesMost;
  if (!last_wait_.has_value()) last_wait_ = SteadyClock::instance().now();
  const TimePoint end = std::min(begin, *last_wait_) + kFetchesMost;
  return is_aborted ? std::min<TimePoint>(end, *last_wait_ + kAbortedFetchesMost) : end;
}

/// Goes on meanwhile, and lets others in. False if there still are some when their time is over.
bool NicSoft::wait_until_none(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& any) {
  const Clock& steady = SteadyClock::instance();
  const TimePoint begin = steady.now();
  while (any()) {
    if (context_.stopped || context_.dead || steady.now() >= patience_ends(begin)) return false;
    const TimePoint now = context_.clock->now();
    bool went_on = false;
    try {
      const bool received = receive(now);
      went_on = progress_queues(now) || received;
      for (const auto& wire : context_.wires) wire->end_turn();
    } catch (const std::exception&) {
      fail_locked();
      return false;
    }
    lock.unlock();
    if (went_on) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
    lock.lock();
  }
  return true;
}

/// Those of one wire at once, which costs what one costs.
void NicSoft::cut(const std::vector<Borrower>& whom) {
  for (std::uint32_t wire = 0; wire < context_.wires.size(); ++wire) {
    std::vector<WireAddress> peers;
    despite_short_memory([&] { peers.reserve(whom.size()); });
    for (const Borrower& one : whom) {
      if (one.wire == wire) peers.push_back({one.address});
    }
    if (peers.empty()) continue;
    if (context_.wires[wire]->cut(peers)) {
      context_.lent.forget_wire(wire);
      continue;
    }
    for (const WireAddress& peer : peers) context_.lent.forget({wire, peer.value});
  }
}

void NicSoft::set_reached(std::uint64_t peer, std::uint32_t key, bool reached) {
  const std::lock_guard lock(mutex_);
  context_.peers.set_reached(peer, key, reached);
}

Result<std::uint32_t> NicSoft::create_queue(const QueueSetup& setup) {
  ORIEL_CHECK(check_setup(setup));
  const std::lock_guard lock(mutex_);
  if (!context_.keys.has_domain(setup.domain)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the NIC has no protection domain {}", setup.domain));
  }
  constexpr std::uint32_t kNumbers = 1u << 24;
  if (queues_.size() >= kNumbers - 1) {
    return Error(ErrorCode::system, "the NIC has no number left for another queue");
  }
  // An odd step, so that neighbours look different in every byte.
  while (setup.number == 0) {
    last_number_ = (last_number_ + 0x2f3d1b) % kNumbers;
    if (last_number_ != 0 && !queues_.contains(last_number_)) break;
  }
  const std::uint32_t number = setup.number != 0 ? setup.number : last_number_;
  if (queues_.contains(number)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the NIC has a queue {:#x} already", number));
  }
  auto queue = std::make_unique<SoftQueue>(setup, number, context_);
  order_.reserve(order_.size() + 1);
  SoftQueue* const made = queue.get();
  queues_.emplace(number, std::move(queue));
  order_.push_back(made);
  return number;
}

Status NicSoft::destroy_queue(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  // Gone in any case: whoever calls frees the queue's memory whatever the GPU still does.
  Status settled = settle();
  std::erase(order_, queue);
  queues_.erase(number);
  return settled;
}

SoftQueue* NicSoft::find(std::uint32_t number) {
  const auto it = queues_.find(number);
  return it == queues_.end() ? nullptr : it->second.get();
}

Result<SoftQueue*> NicSoft::find_or_fail(std::uint32_t number) {
  SoftQueue* const queue = find(number);
  if (queue != nullptr) return queue;
  return Error(ErrorCode::invalid_argument, fmt::format("the NIC has no queue {:#x}", number));
}

Status NicSoft::to_init(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  return queue->to_init();
}

Status NicSoft::to_ready_to_receive(std::uint32_t number, const QueuePeer& peer) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  if (peer.wire >= context_.wires.size()) {
    return Error(ErrorCode::invalid_argument, fmt::format("the NIC has {} wires and no wire {}",
                                                          context_.wires.size(), peer.wire));
  }
  return queue->to_ready_to_receive(peer);
}

Status NicSoft::to_ready_to_send(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  return queue->to_ready_to_send();
}

Status NicSoft::to_error(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  if (queue->setup().records == nullptr) return queue->to_error();
  // It may go on elsewhere, where a dump could not wait for what is on its way here.
  context_.late.land_all();
  Status settled = settle();
  try {
    queue->fence();
  } catch (const std::exception&) {
    fail_locked();
    throw;
  }
  return settled;
}

Status NicSoft::to_reset(std::uint32_t number) {
  std::unique_lock lock(mutex_);
  ORIEL_CHECK(find_or_fail(number));
  context_.late.land_all();
  ORIEL_CHECK(settle());
  // What was asked for in this life must not land in the next one.
  const bool is_over = wait_until_none(lock, [&] {
    const SoftQueue* const queue = find(number);
    return queue != nullptr && queue->is_fetching();
  });
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  if (!is_over) cut({queue->fetches_from()});
  auto fresh = std::make_unique<SoftQueue>(queue->setup(), number, context_);
  std::replace(order_.begin(), order_.end(), queue, fresh.get());
  queues_[number] = std::move(fresh);
  return {};
}

Status NicSoft::connect(std::uint32_t number, const QueuePeer& peer) {
  ORIEL_CHECK(to_init(number));
  ORIEL_CHECK(to_ready_to_receive(number, peer));
  return to_ready_to_send(number);
}

Result<QueueState> NicSoft::state(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const auto it = queues_.find(number);
  if (it != queues_.end()) return it->second->state();
  return Error(ErrorCode::invalid_argument, fmt::format("the NIC has no queue {:#x}", number));
}

Result<QueueReport> NicSoft::report(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const auto it = queues_.find(number);
  if (it != queues_.end()) return it->second->report();
  return Error(ErrorCode::invalid_argument, fmt::format("the NIC has no queue {:#x}", number));
}

Status NicSoft::ring_again(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  queue->ring_again();
  return {};
}

Status NicSoft::probe(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, find_or_fail(number));
  return queue->probe();
}

bool NicSoft::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || context_.stopped || context_.dead) return false;
  try {
    return turn();
  } catch (const std::exception&) {
    fail_locked();
    return true;
  }
}

/// What has been left in the middle could be taken for done, so nothing is answered any more.
void NicSoft::fail_locked() {
  context_.dead = true;
  failed_ = true;
}

void NicSoft::fail() {
  const std::lock_guard lock(mutex_);
  fail_locked();
}

bool NicSoft::turn() {
  const TimePoint now = context_.clock->now();
  bool any = context_.late.land(now);
  // Answers to what was received before wait for this turn, so that they go together with what the
  // rank posts when it sees that something has come.
  any = progress_queues(now) || any;
  for (const auto& wire : context_.wires) wire->end_turn();
  if (receive(now)) {
    any = true;
    progress_queues(now);
  }
  return (context_.gpu_mover != nullptr && context_.gpu_mover->flush()) || any;
}

bool NicSoft::receive(TimePoint now) {
  bool any = false;
  for (const auto& wire : context_.wires) {
    WireMessage message;
    for (std::size_t i = 0; i < kMessagesMost && wire->receive(message); ++i) {
      any = true;
      if (auto* const request = std::get_if<WireRequest>(&message.body)) {
        SoftQueue* const queue = find(request->to_queue);
        if (queue != nullptr) queue->receive(*request, now);
      } else {
        auto& response = std::get<WireResponse>(message.body);
        SoftQueue* const queue = find(response.to_queue);
        if (queue != nullptr) queue->receive(response, now);
      }
    }
    wire->end_receive();
  }
  return any;
}

bool NicSoft::progress_queues(TimePoint now) {
  const bool shuffle = context_.faults.shuffle_queues;
  if (shuffle) std::shuffle(order_.begin(), order_.end(), context_.random);
  bool any = false;
  for (SoftQueue* const queue : order_) {
    if (context_.stopped || context_.dead) break;
    if (shuffle && context_.random_below(2) == 0) continue;
    any = queue->progress(now) || any;
  }
  return any;
}

void NicSoft::stop() {
  const std::lock_guard lock(mutex_);
  context_.stopped = true;
}

void NicSoft::resume() {
  const std::lock_guard lock(mutex_);
  context_.stopped = false;
}

void NicSoft::die() {
  const std::lock_guard lock(mutex_);
  context_.dead = true;
}

bool NicSoft::is_idle() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(order_.begin(), order_.end(),
                     [](const SoftQueue* queue) { return queue->is_idle(); });
}

bool NicSoft::is_idle(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const auto it = queues_.find(number);
  return it == queues_.end() || it->second->is_idle();
}

NicCounters NicSoft::counters() const {
  const std::lock_guard lock(mutex_);
  return context_.counters;
}

}  // namespace oriel::net
