// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/failure_watch.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "comm/communicator/last_calls.hpp"
#include "comm/communicator/wait_control.hpp"
#include "comm/device/rank_affinity.hpp"
#include "kernels/plan/arguments.hpp"

namespace oriel::comm {
namespace {

/// Reads what kernels have left about a failed call: ranks in different calls, say, or a wait that
/// was given up.
struct FailureNotice {
  explicit FailureNotice(const Notices& notices)
      : failure(__atomic_load_n(reinterpret_cast<const std::uint64_t*>(&notices.failure),
                                __ATOMIC_ACQUIRE)),
        gave_up(__atomic_load_n(&notices.stall.gave_up, __ATOMIC_ACQUIRE)) {}
  bool is_there() const { return kind() != kernels::FailureKind::none || gave_up != 0; }
  kernels::FailureKind kind() const {
    return static_cast<kernels::FailureKind>(failure & 0xffffffffu);
  }
  const std::uint64_t failure;  // kind, and the other rank << 32
  const std::uint64_t gave_up;
};

}  // namespace

Error as_seen_by(int rank, Error error) {
  const int origin = error.origin_rank();
  if (error.code() != ErrorCode::aborted || origin == rank || origin < 0) return error;
  Error seen(ErrorCode::remote, error.message());
  for (const std::string& context : error.contexts()) {
    seen = std::move(seen).with_context(context);
  }
  return std::move(seen).with_scope(error.scope()).with_origin(origin).with_hint(error.hint());
}

Status FailureWatch::watch_ranks() {
  std::vector<Watch> processes;
  for (int rank = 0; rank < parts_.session->size(); ++rank) {
    const auto& info = parts_.topology.infos[static_cast<std::size_t>(rank)];
    const auto& own = parts_.topology.infos[static_cast<std::size_t>(this->rank())];
    if (info.process != own.process && topo::shares_pids(own, info)) {
      processes.push_back({rank, info.pid});
    }
  }
  const topo::Affinity affinity = affinity_of(*parts_.device);
  Log(rank()).info("threads and memory of the library: {}", topo::describe(affinity));
  is_watched_ = true;
  return Monitor::instance().watch(*this, *parts_.session, std::move(processes), affinity.cpus);
}

void FailureWatch::stop_watching() {
  if (is_watched_) Monitor::instance().unwatch(*this);
  is_watched_ = false;
}

std::optional<Error> FailureWatch::error() const {
  if (!parts_.has_failed) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return error_;
}

void FailureWatch::fail(Error error) {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    Error seen = as_seen_by(rank(), std::move(error)).with_scope(Scope::communicator);
    if (!parts_.options.name.empty()) {
      seen = std::move(seen).with_context(fmt::format("in \"{}\"", parts_.options.name));
    }
    Log(rank()).warn("communicator is unusable from now on: {}; hint: abort or destroy it",
                     seen.to_string());
    reason = seen.to_string();
    error_ = std::move(seen);
    // Set under the lock: a second caller, which finds error_ set, relies on has_failed as well.
    parts_.has_failed = true;
  }
  note_ended_calls();
  // Ends the waits of kernels and threads, which can no longer succeed.
  __atomic_store_n(&parts_.notices->host().abort, 1u, __ATOMIC_RELEASE);
  if (on_host(parts_)) device::ring(*own_doorbell(parts_));
  if (Network* const network = parts_.live_network) network->abort();
  parts_.flight->write(reason, true);
}

void FailureWatch::abort(const Error& reason) {
  parts_.session->abort(reason);
  fail(Error(reason).with_origin(rank()));
}

void FailureWatch::give_up(const Error& error) {
  parts_.session->abort(error);
  fail(error);
}

Error FailureWatch::unusable_error() const {
  if (parts_.has_failed) {
    return Error(*error()).with_context("the communicator is unusable since an earlier error");
  }
  return Error(ErrorCode::invalid_usage, "the communicator has been finalized")
      .with_scope(Scope::communicator)
      .with_hint(
          "only queries, deregistrations, ncclCommDestroy and ncclCommAbort may follow "
          "ncclCommFinalize");
}

void FailureWatch::peer_lost(Error error) {
  fail(std::move(error));
}

void FailureWatch::peer_left(int rank) {
  Log(this->rank()).trace("rank {} has finalized or destroyed its communicator", rank);
}

std::optional<Error> FailureWatch::given_up() const {
  const FailureNotice notice(parts_.notices->host());
  const auto kind = notice.kind();
  const auto peer = static_cast<std::int32_t>(notice.failure >> 32);
  if (notice.is_there()) {
    if (auto error = different_calls(parts_)) return error;
  }
  if (kind == kernels::FailureKind::unreadable) {
    return Error(
               ErrorCode::remote,
               fmt::format("rank {} cannot copy what rank {} sends from its memory", rank(), peer))
        .with_origin(peer)
        .with_hint(
            "the buffer of one of them is shorter than its call says, or that process may no "
            "longer be read (ptrace(2))");
  }
  if (kind != kernels::FailureKind::none) {
    const int other = kind == kernels::FailureKind::world_signature
                          ? peer
                          : parts_.team_facts.world_rank_of(peer);
    std::string hint =
        "all ranks pass the same count, type, operation and root, in the same order of calls; a "
        "send and its receive have the same size";
    if (parts_.exchanges->uses_copy_engines()) {
      hint +=
          "; with NCCL_CTA_POLICY_ZERO a buffer in a window with NCCL_WIN_COLL_SYMMETRIC has one "
          "offset on all ranks";
    }
    return Error(ErrorCode::invalid_usage,
                 fmt::format("ranks {} and {} are in different calls", rank(), other))
        .with_origin(other)
        .with_hint(std::move(hint));
  }
  if (notice.gave_up != 0) return timed_out(device::stalled_rank(notice.gave_up));
  return std::nullopt;
}

bool FailureWatch::is_own_grid(int awaited_rank) const {
  return awaited_rank == rank() && !on_host(parts_);
}

Error FailureWatch::timed_out(int other) const {
  constexpr const char* kMakeRoom =
      "end other kernels that fill that rank's GPU, or lower ORIEL_MAX_CTAS: all CTAs of a kernel "
      "have to run at once";
  if (is_own_grid(other)) {
    return Error(ErrorCode::timeout,
                 fmt::format("a kernel of rank {} has waited for its own CTAs longer than "
                             "ORIEL_COLLECTIVE_TIMEOUT",
                             rank()))
        .with_origin(rank())
        .with_hint(kMakeRoom);
  }
  // The awaited rank may itself wait for another rank, and may have started only a little later.
  const auto [end, waits_for_itself] =
      other < 0 ? boot::ChainEnd() : parts_.session->peers().end_of_wait(other);
  const bool is_chain = end >= 0 && end != other && end != rank();
  const int last = is_chain ? end : other;
  if (waits_for_itself && !on_host(parts_)) {
    return Error(ErrorCode::timeout,
                 fmt::format("rank {} has waited longer than ORIEL_COLLECTIVE_TIMEOUT for rank {}, "
                             "a kernel of which waits for its own CTAs",
                             rank(), last))
        .with_origin(last)
        .with_hint(kMakeRoom);
  }
  auto text = fmt::format("rank {} has waited for rank {} longer than ORIEL_COLLECTIVE_TIMEOUT",
                          rank(), other);
  if (is_chain) text += fmt::format("; that one waits too, in the end for rank {}", end);
  return Error(ErrorCode::timeout, std::move(text))
      .with_origin(last)
      .with_hint("the rank named last is stopped, or is not in this call");
}

void FailureWatch::detect_failure() {
  if (parts_.has_failed) return;
  if (Network* const network = parts_.live_network) {
    const TimePoint now = SteadyClock::instance().now();
    if (const auto error = network->failure(now, &parts_.notices->host().abort)) {
      // If the session has failed already, its failure takes precedence: the other ranks have
      // received it.
      if (auto reported = parts_.session->failure()) return fail(*std::move(reported));
      return give_up(*error);
    }
  }
  // While the network is in doubt, the notices are ignored: each waiting rank would name the rank
  // that it waits for.
  const bool is_in_doubt =
      parts_.live_network != nullptr && parts_.live_network.load()->is_in_doubt();
  if (const auto error = is_in_doubt ? std::nullopt : given_up()) return give_up(*error);
  if (auto failure = parts_.session->failure()) fail(*std::move(failure));
}

void FailureWatch::note_ended_calls() {
  if (on_host(parts_) || !parts_.flight->is_wanted() || parts_.executor == nullptr) return;
  const std::optional<std::uint64_t> marks = parts_.executor->ended_marks();
  // A kernel that gives up leaves its notice before it ends. Its call counts as not ended, so the
  // count of an earlier tick stays.
  if (marks && !FailureNotice(parts_.notices->host()).is_there()) {
    parts_.flight->note_ended(*marks);
  }
}

void FailureWatch::tick(TimePoint now) {
  if (!parts_.has_failed) note_ended_calls();
  detect_failure();
  inquiry_.serve();
  if (!parts_.has_failed) watch_stall(now);
}

void FailureWatch::await_failure() {
  constexpr auto kPause = std::chrono::milliseconds(1);
  detect_failure();
  while (!parts_.has_failed && parts_.network != nullptr && parts_.network->is_in_doubt()) {
    std::this_thread::sleep_for(kPause);
    detect_failure();
  }
}

}  // namespace oriel::comm
