// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/rank_communicator.hpp"

#include <new>

#include <fmt/format.h>

#include "oriel/device/doorbell.hpp"

#include "base/log.hpp"
#include "base/try.hpp"

namespace oriel::comm {

Communicator::Communicator(Device& device, const Settings& settings, CommunicatorOptions options)
    : device_(&device), settings_(&settings), options_(std::move(options)) {}

Communicator::~Communicator() {
  if (watched_) Monitor::instance().unwatch(*this);
  if (network_ != nullptr) {
    // Whoever still asks this rank for something shall know why it has no answer.
    session_->leave();
    try {
      network_->leave();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the windows wait longer
    }
    network_->remove_doorbell(*own_doorbell());  // the bell lies in a window
  }
  windows_.reset();
  live_network_ = nullptr;
  network_.reset();
  // The windows' mappings hold the memory itself; this ends only our own view of it.
  if (scratch_ != nullptr) static_cast<void>(device_->memory().free(scratch_));
}

Result<EventLoop> make_loop(Communicator& communicator) {
  auto loop = EventLoop::create();
  if (loop.ok()) return loop;
  communicator.abort(loop.error());
  return *communicator.async_error();
}

Error as_seen_by(int rank, Error error) {
  const int origin = error.origin_rank();
  if (error.code() != ErrorCode::aborted || origin == rank || origin < 0) return error;
  Error seen(ErrorCode::remote, error.message());
  for (const std::string& context : error.contexts()) {
    seen = std::move(seen).with_context(context);
  }
  return std::move(seen).with_scope(error.scope()).with_origin(origin).with_hint(error.hint());
}

template <typename T>
Task<T> Communicator::concluded(Task<T> call) {
  std::optional<T> outcome;
  try {
    outcome.emplace(co_await std::move(call));
  } catch (const std::bad_alloc&) {
    outcome.emplace(run_out_of_memory(*this));
  }
  if (outcome->ok()) co_return std::move(*outcome);
  look_for_failure();
  co_return as_seen_by(rank(), std::move(*outcome).error());
}

Task<Result<std::vector<void*>>> Communicator::register_windows(
    EventLoop& loop, std::vector<window::WindowRequest> requests) {
  return concluded(register_batch(loop, std::move(requests)));
}

Task<Result<DeviceCommMemory>> Communicator::make_device_comm(EventLoop& loop,
                                                              DeviceCommRequest request) {
  return concluded(build_device_comm(loop, request));
}

Status Communicator::finalize() {
  ORIEL_CHECK(check_usable());
  if (Status drained = drain(); !drained.ok()) {
    look_for_failure();
    return as_seen_by(rank(), std::move(drained).error());
  }
  ORIEL_CHECK(check_usable());  // what was enqueued may have failed
  finalized_ = true;
  session_->leave();
  return {};
}

Task<Result<std::vector<void*>>> Communicator::register_batch(
    EventLoop& loop, std::vector<window::WindowRequest> requests) {
  ORIEL_CO_CHECK(check_usable());
  const Deadline deadline = Deadline::after(settings_->timeout, loop.clock());
  ORIEL_CO_TRY(const auto activity, session_->activate(loop, deadline));
  std::vector<void*> handles;
  auto registered = co_await windows_->register_batch(loop, boot::Operation::window_register,
                                                      std::move(requests), deadline);
  if (!registered.ok()) co_return std::move(registered).error();
  for (const auto& window : registered.value()) handles.push_back(window.handle);
  co_return std::move(handles);
}

Status Communicator::deregister_window(const void* handle) {
  if (handle == control_.handle) {
    return Error(ErrorCode::invalid_argument, "this is not a window of the user's");
  }
  return windows_->deregister(handle);
}

Status Communicator::drain() {
  constexpr auto kSlice = std::chrono::milliseconds(20);
  const Clock& clock = SteadyClock::instance();
  std::optional<Deadline> grace;
  for (;;) {
    Status drained = executor_->drain(Deadline::after(kSlice, clock));
    if (drained.ok()) flush_network();
    if (drained.ok() || drained.error().code() != ErrorCode::timeout) return drained;
    if (!poisoned_) continue;
    if (!grace) grace = Deadline::after(kDrainGrace, clock);
    if (grace->expired(clock.now())) return drained;
  }
}

void Communicator::abort(const Error& reason) {
  session_->abort(reason);
  poison(Error(reason).with_origin(rank()));
}

Error run_out_of_memory(Communicator& communicator) {
  Error reason = Error(ErrorCode::system, "out of memory").with_origin(communicator.rank());
  communicator.abort(reason);
  return reason;
}

std::optional<Error> Communicator::async_error() const {
  if (!poisoned_) return std::nullopt;
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

void Communicator::poison(Error error) {
  std::string reason;
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    Error seen = as_seen_by(rank(), std::move(error)).with_scope(Scope::communicator);
    if (!options_.name.empty()) {
      seen = std::move(seen).with_context(fmt::format("in \"{}\"", options_.name));
    }
    Log(rank()).warn("communicator is unusable from now on: {}", seen.to_string());
    reason = seen.to_string();
    failure_ = std::move(seen);
    // Under the lock: a caller who comes second and finds the failure there relies on this as well.
    poisoned_ = true;
  }
  // Ends the waits of kernels and threads: nothing that they wait for will come.
  __atomic_store_n(&notices_->host().abort, 1u, __ATOMIC_RELEASE);
  if (on_host()) device::ring(*own_doorbell());
  if (Network* const network = live_network_) network->abort();
  flight_->write(reason, true);
}

void Communicator::give_up(const Error& error) {
  session_->abort(error);
  poison(error);
}

Status Communicator::check_usable() const {
  if (poisoned_) {
    return Error(*async_error())
        .with_context("the communicator is unusable since an earlier error");
  }
  if (finalized_) {
    return Error(ErrorCode::invalid_usage, "the communicator has been finalized")
        .with_scope(Scope::communicator)
        .with_hint("only ncclCommDestroy and ncclCommAbort may follow ncclCommFinalize");
  }
  return {};
}

void Communicator::peer_lost(Error error) {
  poison(std::move(error));
}

void Communicator::peer_left(int rank) {
  Log(this->rank()).trace("rank {} has finalized or destroyed its communicator", rank);
}

std::optional<Error> Communicator::given_up() const {
  const Notices& notices = notices_->host();
  const std::uint64_t failure =
      __atomic_load_n(reinterpret_cast<const std::uint64_t*>(&notices.failure), __ATOMIC_ACQUIRE);
  const auto kind = static_cast<kernels::FailureKind>(failure & 0xffffffffu);
  const std::uint64_t gave_up = __atomic_load_n(&notices.stall.gave_up, __ATOMIC_ACQUIRE);
  if (kind != kernels::FailureKind::none || gave_up != 0) {
    if (auto error = different_calls()) return error;
  }
  if (kind != kernels::FailureKind::none) {
    const auto index = static_cast<std::int32_t>(failure >> 32);
    const int other =
        kind == kernels::FailureKind::world_signature ? index : team_facts_.world_rank_of(index);
    return Error(ErrorCode::invalid_usage,
                 fmt::format("ranks {} and {} are in different calls", rank(), other))
        .with_origin(other)
        .with_hint(
            "all ranks pass the same count, type, operation and root, in the same order of "
            "calls; a send and its receive have the same size");
  }
  if (gave_up != 0) {
    const int other = device::stalled_rank(gave_up);
    auto text = fmt::format("rank {} has waited for rank {} longer than ORIEL_COLLECTIVE_TIMEOUT",
                            rank(), other);
    // That one may itself wait for another, and have begun to only a little later.
    const int end = other < 0 ? other : session_->peers().end_of_wait(other);
    const bool is_chain = end >= 0 && end != other && end != rank();
    if (is_chain) text += fmt::format("; that one waits too, in the end for rank {}", end);
    return Error(ErrorCode::timeout, std::move(text))
        .with_origin(is_chain ? end : other)
        .with_hint("the rank named last is stopped, or is not in this call");
  }
  return std::nullopt;
}

void Communicator::look_for_failure() {
  if (poisoned_) return;
  if (Network* const network = live_network_) {
    const TimePoint now = SteadyClock::instance().now();
    if (const auto error = network->failure(now, &notices_->host().abort)) {
      // Who has spoken before is who all others have heard.
      if (auto told = session_->failure()) return poison(*std::move(told));
      return give_up(*error);
    }
  }
  // Of those that wait each would name whom it waits for.
  const bool is_in_doubt = live_network_ != nullptr && live_network_.load()->is_in_doubt();
  if (const auto error = is_in_doubt ? std::nullopt : given_up()) return give_up(*error);
  if (auto failure = session_->failure()) poison(*std::move(failure));
}

void Communicator::tick(TimePoint now) {
  look_for_failure();
  if (!poisoned_) watch_stall(now);
}

}  // namespace oriel::comm
