// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/owned_thread.hpp"

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#if ORIEL_HAVE_CUDA
#include "base/cuda_scope.hpp"
#endif
#include "base/fork.hpp"
#include "base/system_table.hpp"

namespace oriel {
namespace {

/// Timeout of unload and exit() for threads that do not stop, such as a thread in a hung driver.
constexpr Duration kUnloadTime = std::chrono::seconds(10);

/// While alive, threads that this thread creates start with all signals blocked.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

/// Shared by the owner, the thread and the registry.
struct OwnedThread::State {
  explicit State(Options given) : options(std::move(given)) {}

  static inline constinit thread_local const State* current = nullptr;

  const pid_t process = ::getpid();
  Options options;
  pthread_t thread{};

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  int stop_calls = 0;  // calls in progress
  bool ended = false;
  bool joined = false;
  bool left = false;  // to the library
  std::optional<Error> failure;

  bool is_here() const { return process == ::getpid(); }
  bool is_current() const { return current == this; }

  static void* enter(void* argument) noexcept {
    const std::unique_ptr<std::shared_ptr<State>> handed(
        static_cast<std::shared_ptr<State>*>(argument));
    current = handed->get();
    ::pthread_setname_np(::pthread_self(), current->options.name);
    (*handed)->run_body();
    (*handed)->end();
    return nullptr;
  }

  void run_body() noexcept {
    try {
#if ORIEL_HAVE_CUDA
      std::optional<Result<RelaxedCapture>> relaxed;
      if (cuda_loaded()) relaxed.emplace(RelaxedCapture::enter());
#endif
      options.body();
    } catch (const std::bad_alloc&) {
      fail(ErrorCode::system, "out of memory");
    } catch (const std::exception& thrown) {
      fail(ErrorCode::internal, thrown.what());
    } catch (...) {
      fail(ErrorCode::internal, "an exception of an unknown type");
    }
  }

  void fail(ErrorCode code, const char* what) noexcept {
    try {
      const Error reason(code, std::string("the thread ") + options.name + " failed: " + what);
      {
        const std::lock_guard lock(mutex);
        failure = reason;
      }
      if (options.failed) options.failed(reason);
    } catch (...) {  // NOLINT(bugprone-empty-catch): there is no memory to say so
    }
  }

  // Destroys the functions' captured objects in this thread: it may not be joined before unload.
  void end() noexcept {
    options.body = nullptr;
    options.failed = nullptr;
    std::function<void()> stop;
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stop_calls == 0; });
    stop.swap(options.stop);
    lock.unlock();
    stop = nullptr;
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  void call_stop() noexcept {
    std::unique_lock lock(mutex);
    if (ended || !options.stop) return;
    ++stop_calls;
    lock.unlock();
    try {
      options.stop();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the thread may end without it
    }
    lock.lock();
    --stop_calls;
    changed.notify_all();
  }

  /// Joins the thread; returns false if it has not ended by `deadline`.
  bool join(Deadline deadline) {
    std::unique_lock lock(mutex);
    const auto may_join = [this] { return ended && stop_calls == 0; };
    if (deadline.is_never()) {
      changed.wait(lock, may_join);
    } else if (!changed.wait_until(lock, deadline.when(), may_join)) {
      return false;
    }
    // The thread no longer needs the mutex.
    if (!std::exchange(joined, true)) ::pthread_join(thread, nullptr);
    return true;
  }
};

/// Threads that have not been joined.
class OwnedThread::Registry {
 public:
  static Registry& instance() {
    // Never destroyed: an owner may join its thread while the process exits.
    static auto* const registry = [] {
      auto* const made = new Registry;
      keep_free_in_children(ForkLock::threads, made->mutex_);
      return made;
    }();
    struct AtUnload {
      ~AtUnload() { registry->stop_all(); }
    };
    static const AtUnload at_unload;
    return *registry;
  }

  void add(const std::shared_ptr<State>& state) {
    const std::lock_guard lock(mutex_);
    threads_.push_back(state);
  }
  void remove(const std::shared_ptr<State>& state) {
    const std::lock_guard lock(mutex_);
    std::erase(threads_, state);
  }
  /// Joins the threads that were left to the library and have ended.
  void reap() {
    const std::lock_guard lock(mutex_);
    std::erase_if(threads_, [](const std::shared_ptr<State>& state) {
      if (!state->is_here()) return false;
      const std::lock_guard state_lock(state->mutex);
      if (!state->left || !state->ended || state->stop_calls > 0) return false;
      if (!std::exchange(state->joined, true)) ::pthread_join(state->thread, nullptr);
      return true;
    });
  }

 private:
  void stop_all() noexcept {
    {
      const std::lock_guard lock(mutex_);
      unloading_.swap(threads_);
    }
    const auto each = [this](const auto& act) {
      for (const auto& state : unloading_) {
        if (state->is_here() && !state->is_current()) act(*state);
      }
    };
    const Deadline deadline = Deadline::after(kUnloadTime);
    each([](State& state) { state.call_stop(); });
    each([deadline](State& state) { static_cast<void>(state.join(deadline)); });
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<State>> threads_;  // a forked child keeps the parent's threads too
  std::vector<std::shared_ptr<State>> unloading_;
};

OwnedThread::OwnedThread(std::shared_ptr<State> state) : state_(std::move(state)) {}

OwnedThread& OwnedThread::operator=(OwnedThread&& other) noexcept {
  OwnedThread old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

OwnedThread::~OwnedThread() {
  if (state_ == nullptr) return;
  if (is_current()) {
    leave_to_library();
    return;
  }
  stop();
  static_cast<void>(join());
}

Result<OwnedThread> OwnedThread::start(Options options) {
  Registry& registry = Registry::instance();
  registry.reap();
  auto state = std::make_shared<State>(std::move(options));
  auto handed = std::make_unique<std::shared_ptr<State>>(state);
  registry.add(state);
  const SignalsBlocked blocked;
  if (sys().pthread_create(&state->thread, nullptr, State::enter, handed.get()) != 0) {
    const int status = errno;
    registry.remove(state);
    return system_error(std::string("starting the thread ") + state->options.name, status);
  }
  static_cast<void>(handed.release());  // owned by the thread now
  return OwnedThread(std::move(state));
}

bool OwnedThread::is_current() const {
  return state_ != nullptr && state_->is_current();
}

void OwnedThread::stop() {
  if (state_ != nullptr && state_->is_here()) state_->call_stop();
}

Status OwnedThread::join(Deadline deadline) {
  if (state_ == nullptr) return {};
  if (is_current()) return Error(ErrorCode::internal, "a thread cannot join itself");
  const auto state = state_;
  if (state->is_here()) {
    if (!state->join(deadline)) {
      return Error(ErrorCode::timeout,
                   std::string("the thread ") + state->options.name + " has not ended in time");
    }
    Registry::instance().remove(state);
    if (state->failure) {
      state_.reset();
      return std::move(*state->failure);
    }
  }
  state_.reset();
  return {};
}

void OwnedThread::leave_to_library() {
  if (state_ == nullptr) return;
  if (state_->is_here()) {
    const std::lock_guard lock(state_->mutex);
    state_->left = true;
  }
  state_.reset();
}

}  // namespace oriel
