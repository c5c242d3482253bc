// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/nic_thread.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "oriel/device/wait.hpp"

#include "base/owned_thread.hpp"
#include "base/try.hpp"

namespace oriel::net {
namespace {

using std::chrono::microseconds;
constexpr microseconds kYieldFor{500};
constexpr microseconds kNap{50};
/// Polls without work per yield. A yield takes longer than a poll, and delays what arrives
/// meanwhile.
constexpr std::uint32_t kPollsPerYield = 16;

}  // namespace

struct NicThread::State {
  explicit State(Options given) : options(std::move(given)) {}

  Options options;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint32_t stop_word = 0;  // in the form that wait_until takes
  OwnedThread thread;           // declared last, so that it ends before the other members

  bool is_stopped() {
    return std::atomic_ref<std::uint32_t>(stop_word).load(std::memory_order_acquire) != 0;
  }
  void ask_to_end() {
    {
      const std::lock_guard lock(mutex);  // keeps a nap from starting in between
      std::atomic_ref<std::uint32_t>(stop_word).store(1, std::memory_order_release);
    }
    changed.notify_all();
    if (options.doorbell != nullptr) device::ring(*options.doorbell);
    if (options.wake) options.wake();
  }
  void run() {
    try {
      if (options.begin) options.begin();
    } catch (...) {  // NOLINT(bugprone-empty-catch): its work, such as CPU affinity, is optional
    }
    if (options.doorbell == nullptr) {
      nap_between_polls();
    } else {
      sleep_on_doorbell();
    }
  }
  void sleep_on_doorbell() {
    device::WaitControl control;
    control.abort = &stop_word;
    control.spin_ns = 0;
    control.yield_ns = 100'000;
    control.doorbell = options.doorbell;
    while (device::wait_until(options.progress, control, {}) == device::WaitOutcome::ready) {
      // wait_until returns after a poll with work; the stop word is checked between two such
      // returns.
      if (is_stopped()) return;
    }
  }
  void nap_between_polls() {
    const Clock& clock = SteadyClock::instance();
    TimePoint last = clock.now();
    std::uint32_t polls = 0;
    while (!is_stopped()) {
      if (options.progress()) {
        last = clock.now();
      } else if (clock.now() - last < kYieldFor) {
        if (++polls % kPollsPerYield == 0) std::this_thread::yield();
      } else if (options.sleep) {
        options.sleep();
      } else {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, kNap, [this] { return is_stopped(); });
      }
    }
  }
};

NicThread::NicThread(std::unique_ptr<State> state) : state_(std::move(state)) {}
NicThread::NicThread(NicThread&&) noexcept = default;
NicThread& NicThread::operator=(NicThread&&) noexcept = default;
NicThread::~NicThread() = default;

Result<NicThread> NicThread::start(Options options) {
  auto state = std::make_unique<State>(std::move(options));
  State* const raw = state.get();
  ORIEL_TRY(state->thread, OwnedThread::start({.name = "oriel-nic",
                                               .body = [raw] { raw->run(); },
                                               .stop = [raw] { raw->ask_to_end(); },
                                               .failed = raw->options.failed}));
  return NicThread(std::move(state));
}

}  // namespace oriel::net
