// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_ringer.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/system_table.hpp"

namespace oriel::net {
namespace {

constexpr std::chrono::microseconds kRingerYieldsFor{500};
constexpr std::chrono::microseconds kRingerNap{50};

}  // namespace

Mlx5Ringer::Bell::Bell(std::shared_ptr<Mlx5Ringer> ringer, std::uint64_t* slot)
    : ringer_(std::move(ringer)), slot_(slot) {}

Mlx5Ringer::Bell::Bell(Bell&& other) noexcept
    : ringer_(std::move(other.ringer_)), slot_(std::exchange(other.slot_, nullptr)) {}

Mlx5Ringer::Bell& Mlx5Ringer::Bell::operator=(Bell&& other) noexcept {
  if (this != &other) {
    reset();
    ringer_ = std::move(other.ringer_);
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

void Mlx5Ringer::Bell::reset() {
  if (slot_ != nullptr) ringer_->remove(slot_);
  slot_ = nullptr;
  ringer_.reset();
}

Result<Mlx5Ringer::Bell> Mlx5Ringer::serve(const std::shared_ptr<Mlx5Ringer>& ringer,
                                           std::uint64_t* slot, void* doorbell) {
#if !defined(__x86_64__)
  return Error(ErrorCode::system, "doorbells of mlx5 adapters are rung by x86-64 processors only")
      .with_hint("use GPUs that can ring them");
#endif
  const std::lock_guard lock(ringer->mutex_);
  ringer->pairs_.push_back({slot, static_cast<std::uint64_t*>(doorbell)});
  ringer->count_.store(ringer->pairs_.size(), std::memory_order_relaxed);
  return Bell(ringer, slot);
}

void Mlx5Ringer::remove(const std::uint64_t* slot) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pairs_, [&](const Pair& pair) { return pair.slot == slot; });
  count_.store(pairs_.size(), std::memory_order_relaxed);
}

bool Mlx5Ringer::progress() {
  if (!is_needed()) return false;
  const std::lock_guard lock(mutex_);
  bool rung = false;
  for (const Pair& pair : pairs_) {
    const std::atomic_ref<std::uint64_t> slot(*pair.slot);
    // Exchanging each time would take the cache line from those who store there.
    if (slot.load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t value = slot.exchange(0, std::memory_order_acq_rel);
    std::atomic_ref<std::uint64_t>(*pair.doorbell).store(value, std::memory_order_release);
    rung = true;
  }
  // A locked instruction empties the processor's buffers, should the registers be mapped as
  // write-combining. (ThreadSanitizer knows no fences.)
  if (rung) drained_.exchange(1, std::memory_order_seq_cst);
  return rung;
}

struct Mlx5RingerThread::State {
  std::shared_ptr<Mlx5Ringer> ringer;
  std::function<void()> begin;
  std::atomic<bool> stop{false};
  std::thread thread;

  void run() {
    try {
      if (begin) begin();
    } catch (...) {  // NOLINT(bugprone-empty-catch): where the thread runs is a wish
    }
    const Clock& clock = SteadyClock::instance();
    TimePoint last = clock.now();
    while (!stop.load(std::memory_order_relaxed)) {
      if (ringer->progress()) {
        last = clock.now();
      } else if (clock.now() - last < kRingerYieldsFor) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kRingerNap);
      }
    }
  }
};

Mlx5RingerThread::Mlx5RingerThread(std::unique_ptr<State> state) : state_(std::move(state)) {}
Mlx5RingerThread::Mlx5RingerThread(Mlx5RingerThread&&) noexcept = default;

Mlx5RingerThread& Mlx5RingerThread::operator=(Mlx5RingerThread&& other) noexcept {
  Mlx5RingerThread old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Mlx5RingerThread::~Mlx5RingerThread() {
  if (state_ == nullptr) return;
  state_->stop = true;
  state_->thread.join();
}

Result<Mlx5RingerThread> Mlx5RingerThread::start(std::shared_ptr<Mlx5Ringer> ringer,
                                                 std::function<void()> begin) {
  auto state = std::make_unique<State>();
  state->ringer = std::move(ringer);
  state->begin = std::move(begin);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = 0;
  try {
    state->thread = std::thread([raw = state.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    failed = error.code().value();
  } catch (const std::bad_alloc&) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) return system_error("starting the thread that rings doorbells", failed);
  return Mlx5RingerThread(std::move(state));
}

}  // namespace oriel::net
