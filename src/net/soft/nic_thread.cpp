// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/nic_thread.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "oriel/device/wait.hpp"

#include "base/system_table.hpp"

namespace oriel::net {
namespace {

using std::chrono::microseconds;
constexpr microseconds kYieldFor{500};
constexpr microseconds kNap{50};
/// Looks without work for each time that others may have the processor, which takes longer than a
/// look does: what arrives meanwhile waits.
constexpr std::uint32_t kLooksPerYield = 16;

}  // namespace

struct NicThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;
  std::uint32_t stop_word = 0;  // the same as `stop`, for wait_until
  Options options;
  std::thread thread;

  bool is_stopped() {
    const std::lock_guard lock(mutex);
    return stop;
  }
  void tell_to_end() {
    const std::lock_guard lock(mutex);
    stop = true;
    changed.notify_all();
    std::atomic_ref<std::uint32_t>(stop_word).store(1, std::memory_order_release);
    if (options.bell != nullptr) device::ring(*options.bell);
    if (options.wake) options.wake();
  }
  void run() {
    try {
      if (options.begin) options.begin();
    } catch (...) {  // NOLINT(bugprone-empty-catch): what it prepares is a wish, such as processors
    }
    if (options.bell == nullptr) {
      nap_between_looks();
    } else {
      sleep_on_bell();
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
  void sleep_on_bell() {
    device::WaitControl control;
    control.abort = &stop_word;
    control.spin_ns = 0;
    control.yield_ns = 100'000;
    control.doorbell = options.bell;
    while (device::wait_until(options.progress, control, {}) == device::WaitOutcome::ready) {
      // A wait ends with the first work; the stop word is looked at between two that had some.
      if (std::atomic_ref<std::uint32_t>(stop_word).load(std::memory_order_acquire) != 0) return;
    }
  }
  void nap_between_looks() {
    const Clock& clock = SteadyClock::instance();
    TimePoint last = clock.now();
    std::uint32_t looks = 0;
    while (!is_stopped()) {
      if (options.progress()) {
        last = clock.now();
      } else if (clock.now() - last < kYieldFor) {
        if (++looks % kLooksPerYield == 0) std::this_thread::yield();
      } else if (options.sleep) {
        options.sleep();
      } else {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, kNap, [this] { return stop; });
      }
    }
  }
};

NicThread::NicThread(std::unique_ptr<State> state) : state_(std::move(state)) {}
NicThread::NicThread(NicThread&&) noexcept = default;

NicThread& NicThread::operator=(NicThread&& other) noexcept {
  NicThread old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

NicThread::~NicThread() {
  if (state_ == nullptr) return;
  state_->tell_to_end();
  if (state_->thread.joinable()) state_->thread.join();
}

Result<NicThread> NicThread::start(NicSoft& nic) {
  Options options;
  options.progress = [&nic] { return nic.progress(); };
  return start(std::move(options));
}

Result<NicThread> NicThread::start(Options options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    state->thread = std::thread([raw = state.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    started = system_error("starting a software NIC's thread", error.code().value());
  } catch (const std::bad_alloc&) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) return std::move(started).error();
  return NicThread(std::move(state));
}

Status NicThread::stop(Deadline deadline) {
  if (state_ == nullptr) return {};
  state_->tell_to_end();
  {
    std::unique_lock lock(state_->mutex);
    const auto ended = [this] { return state_->ended; };
    if (deadline.is_never()) {
      state_->changed.wait(lock, ended);
    } else if (!state_->changed.wait_until(lock, deadline.when(), ended)) {
      return Error(ErrorCode::timeout, "the software NIC's thread has not ended in time");
    }
  }
  state_->thread.join();
  state_.reset();
  return {};
}

}  // namespace oriel::net
