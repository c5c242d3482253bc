// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/nic_memory.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::net {
namespace {

// Limit for GPU copies that have not started.
constexpr std::chrono::seconds kCopiesMost{30};
// Limit for rendezvous reads of a peer that is alive.
constexpr std::chrono::seconds kReadsMost{5};
// Limit after an abort, when nobody needs the data of rendezvous reads. Most peers are still there
// and end their reads in this time. This avoids cutting their connections.
constexpr std::chrono::milliseconds kAbortedReadsMost{100};
constexpr std::chrono::microseconds kPause{50};

}  // namespace

NicCore::NicCore(const NicOptions& options) {
  context_.clock = options.clock;
  context_.gpu_engine = options.gpu;
  context_.keys = MemoryKeys(random_start());
}

std::uint32_t NicCore::random_start() {
  std::uint32_t start = 0;
  // Without randomness all NICs start alike: fewer mistakes are detected, nothing else changes.
  static_cast<void>(sys().getrandom(&start, sizeof start, 0));
  return start;
}

Status NicCore::settle() {
  if (context_.gpu_engine == nullptr) return {};
  return context_.gpu_engine->drain();
}

void NicCore::serve_gpu(CopyEngine& engine) {
  const std::lock_guard lock(mutex_);
  context_.gpu_engine = &engine;
}

std::uint32_t NicCore::add_wire(std::unique_ptr<Wire> wire) {
  const std::lock_guard lock(mutex_);
  context_.wires.push_back(std::move(wire));
  return static_cast<std::uint32_t>(context_.wires.size() - 1);
}

WireAddress NicCore::address(std::uint32_t wire) const {
  const std::lock_guard lock(mutex_);
  return wire < context_.wires.size() ? context_.wires[wire]->address() : WireAddress{};
}

/// Stops all responses: work that stopped half way could be taken for complete.
void NicCore::fail_locked() {
  failed_ = true;
}

void NicCore::fail() {
  const std::lock_guard lock(mutex_);
  fail_locked();
}

Result<std::uint32_t> NicMemory::register_memory(const MemoryRange& range) {
  const std::lock_guard lock(mutex_);
  if (range.place == MemoryPlace::gpu && context_.gpu_engine == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} bytes at {:#x} are of a GPU, and this NIC serves none",
                             range.bytes, range.address))
        .with_hint("call serve_gpu() first");
  }
  return context_.keys.add(range);
}

Status NicMemory::deregister_memory(std::uint32_t key) {
  std::unique_lock lock(mutex_);
  const MemoryRange* const range = context_.keys.range_of(key);
  Status settled;
  if (range != nullptr && range->place == MemoryPlace::gpu) {
    settled = settle();
    context_.gpu_engine->forget(range->memory, range->bytes);
  } else if (range != nullptr) {
    end_reads(lock, key);
  }
  context_.peers.forget(key);
  ORIEL_CHECK(context_.keys.remove(key));
  return settled;
}

Status NicMemory::map_peer_memory(std::uint64_t peer, std::uint32_t key, const MemoryRange& range) {
  const std::lock_guard lock(mutex_);
  return context_.peers.add(peer, key, range);
}

Status NicMemory::unmap_peer_memory(std::uint64_t peer, std::uint32_t key) {
  const std::lock_guard lock(mutex_);
  end_copies(peer, key);
  context_.peers.remove(peer, key);
  return settle();
}

/// Waits, at most kCopiesMost, until copies that queue behind work of the GPU have started, so that
/// their source may be unmapped.
void NicMemory::end_copies(std::uint64_t peer, std::uint32_t key) {
  if (context_.gpu_engine == nullptr || has_failed()) return;
  const Clock& steady = SteadyClock::instance();
  const Deadline deadline = Deadline::after(kCopiesMost, steady);
  while (!deadline.expired(steady.now())) {
    if (!needs(peer, key)) return;
    static_cast<void>(context_.gpu_engine->flush());
    std::this_thread::yield();
  }
}

/// Ends rendezvous reads from and into the memory, by peers and by this NIC.
void NicMemory::end_reads(std::unique_lock<std::mutex>& lock, std::uint32_t key) {
  cut(context_.exposed.readers(key, true));
  if (wait_until_none(lock, [&] { return is_rendezvous(key); })) return;
  std::vector<WirePeer> whom = context_.exposed.readers(key, false);
  for (std::uint32_t wire = 0; wire < context_.wires.size(); ++wire) {
    for (const auto& peer : context_.wires[wire]->reads_by(key)) {
      whom.push_back({wire, peer.value});
    }
  }
  cut(whom);
}

bool NicMemory::is_rendezvous(std::uint32_t key) const {
  return context_.exposed.is_exposed(key) ||
         std::any_of(context_.wires.begin(), context_.wires.end(),
                     [&](const auto& wire) { return wire->is_reading(key); });
}

/// Returns the end of a wait that began at `begin`. After end_sending() or end_receiving() all
/// waits share one time limit.
TimePoint NicMemory::timeout_end(TimePoint begin) {
  const bool is_aborted = context_.sends_nothing;
  if (!is_aborted && !context_.takes_nothing) return begin + kReadsMost;
  if (!last_wait_.has_value()) last_wait_ = SteadyClock::instance().now();
  const TimePoint end = std::min(begin, *last_wait_) + kReadsMost;
  return is_aborted ? std::min<TimePoint>(end, *last_wait_ + kAbortedReadsMost) : end;
}

bool NicMemory::wait_until_none(std::unique_lock<std::mutex>& lock,
                                const std::function<bool()>& any) {
  const Clock& steady = SteadyClock::instance();
  const TimePoint begin = steady.now();
  while (any()) {
    if (has_failed() || steady.now() >= timeout_end(begin)) return false;
    bool went_on = false;
    try {
      went_on = go_on();
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

/// Cuts all peers of a wire at once, which costs as much as cutting one.
void NicMemory::cut(const std::vector<WirePeer>& whom) {
  for (std::uint32_t wire = 0; wire < context_.wires.size(); ++wire) {
    std::vector<WireAddress> peers;
    for (const WirePeer& one : whom) {
      if (one.wire == wire) peers.push_back({one.address});
    }
    if (peers.empty()) continue;
    if (context_.wires[wire]->cut(peers)) {
      context_.exposed.forget_wire(wire);
      continue;
    }
    for (const WireAddress& peer : peers) context_.exposed.forget({wire, peer.value});
  }
}

void NicMemory::set_reached(std::uint64_t peer, std::uint32_t key, bool reached) {
  const std::lock_guard lock(mutex_);
  context_.peers.set_reached(peer, key, reached);
}

}  // namespace oriel::net
