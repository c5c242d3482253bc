// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/nic_thread.hpp"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/system_table.hpp"

namespace oriel::net {
namespace {

using std::chrono::microseconds;
constexpr microseconds kYieldFor{500};
constexpr microseconds kNap{50};

}  // namespace

struct NicThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;
  std::thread thread;

  bool is_stopped() {
    const std::lock_guard lock(mutex);
    return stop;
  }
  void tell_to_end() {
    const std::lock_guard lock(mutex);
    stop = true;
    changed.notify_all();
  }
  void run(NicSoft& nic) {
    const Clock& clock = SteadyClock::instance();
    TimePoint last = clock.now();
    while (!is_stopped()) {
      if (nic.progress()) {
        last = clock.now();
      } else if (clock.now() - last < kYieldFor) {
        std::this_thread::yield();
      } else {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, kNap, [this] { return stop; });
      }
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
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
  auto state = std::make_unique<State>();
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    state->thread = std::thread([raw = state.get(), &nic] { raw->run(nic); });
  } catch (const std::system_error& error) {
    started = system_error("starting a software NIC's thread", error.code().value());
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
