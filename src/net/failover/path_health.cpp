// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/path_health.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace oriel::net {

bool is_path_error(Syndrome syndrome) {
  return syndrome == Syndrome::transport_retry || syndrome == Syndrome::flushed;
}

const char* to_string(PathState state) {
  switch (state) {
    case PathState::healthy:
      return "healthy";
    case PathState::suspected:
      return "suspected";
    case PathState::failed:
      return "failed";
    case PathState::probing:
      return "probing";
  }
  return "unknown";
}

std::string to_string(const PathCause& cause) {
  switch (cause.kind) {
    case PathCause::Kind::none:
      break;
    case PathCause::Kind::error:
      return fmt::format("error {:#04x}", static_cast<unsigned>(cause.syndrome));
    case PathCause::Kind::timeout:
      return "no sign of life";
    case PathCause::Kind::given_up:
      return "it could not be taken into use";
  }
  return "it has not failed";
}

void PathHealth::has_work(bool work, TimePoint now) {
  if (work && !work_) last_received_ = std::max(last_received_, now);
  work_ = work;
  if (!work && state_ == PathState::suspected && by_timeout_) state_ = PathState::healthy;
}

void PathHealth::progressed(TimePoint now) {
  last_received_ = now;
  if (state_ == PathState::suspected) state_ = PathState::healthy;
}

void PathHealth::error(Syndrome syndrome, TimePoint now) {
  if (!is_usable()) return;
  if (errors_ != 0 && now - error_at_ > policy_.error_window) errors_ = 0;
  error_at_ = now;
  last_received_ = now;
  cause_ = {PathCause::Kind::error, syndrome};
  if (++errors_ >= policy_.errors_most) return fail(cause_, now);
  state_ = PathState::suspected;
  by_timeout_ = false;
}

void PathHealth::give_up(TimePoint now) {
  if (is_usable()) fail({PathCause::Kind::given_up}, now);
}

void PathHealth::fail(const PathCause& cause, TimePoint now) {
  const bool again = pause_ != Duration::zero() && now - well_at_ < policy_.stable_after;
  pause_ = again ? std::min(pause_ * 2, policy_.retry_most) : policy_.retry_first;
  pause_ends_ = now + pause_;
  state_ = PathState::failed;
  cause_ = cause;
  errors_ = 0;
  answers_ = 0;
  work_ = false;
}

bool PathHealth::take_probe(TimePoint now) {
  const bool wanted =
      state_ == PathState::probing || (state_ == PathState::suspected && by_timeout_);
  if (!wanted || probe_open_ || now - probe_at_ < policy_.probe_every) return false;
  probe_open_ = true;
  probe_at_ = now;
  return true;
}

void PathHealth::probe_answered(TimePoint now) {
  probe_open_ = false;
  last_received_ = now;
  if (state_ != PathState::probing || ++answers_ < policy_.answers_needed) return;
  state_ = PathState::healthy;
  well_at_ = now;
}

void PathHealth::tick(TimePoint now) {
  switch (state_) {
    case PathState::healthy:
    case PathState::suspected:
      if (!work_) return;
      if (now - last_received_ >= policy_.fail_after) return fail({PathCause::Kind::timeout}, now);
      if (state_ == PathState::healthy && now - last_received_ >= policy_.suspect_after) {
        state_ = PathState::suspected;
        by_timeout_ = true;
      }
      return;
    case PathState::failed:
      if (now < pause_ends_) return;
      state_ = PathState::probing;
      answers_ = 0;
      last_received_ = now;
      return;
    case PathState::probing:
      if (now - last_received_ < policy_.fail_after) return;
      // Doubles the pause, as in fail(): the path has not been healthy since.
      state_ = PathState::failed;
      pause_ = std::min(pause_ * 2, policy_.retry_most);
      pause_ends_ = now + pause_;
      return;
  }
}

}  // namespace oriel::net
