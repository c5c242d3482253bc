// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/split.hpp"

#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/communicator/communicator_start.hpp"
#include "comm/communicator/step_times.hpp"

namespace oriel::comm {
namespace {

/// Passes a starting session to SplitRequest::on_session, and null at its own end.
class StartingSession {
 public:
  StartingSession(const SplitRequest& request, boot::Session& session) : request_(request) {
    show(&session);
  }
  ~StartingSession() { show(nullptr); }
  StartingSession(const StartingSession&) = delete;
  StartingSession& operator=(const StartingSession&) = delete;

 private:
  void show(boot::Session* session) const {
    if (request_.on_session) request_.on_session(session);
  }
  const SplitRequest& request_;
};

}  // namespace

/// One rank's part in the split of one communicator.
class Splitting {
 public:
  Splitting(EventLoop& loop, Communicator& parent, SplitRequest request)
      : loop_(loop), parent_(parent), request_(std::move(request)) {}

  Task<Result<std::shared_ptr<Communicator>>> run();

 private:
  Task<Result<boot::SplitPart>> make_session();
  Task<Result<std::shared_ptr<Communicator>>> start(boot::SplitPart part);
  CommunicatorOptions options() const;

  EventLoop& loop_;
  Communicator& parent_;
  SplitRequest request_;
  Deadline deadline_ = Deadline::never();
  StepTimes times_;
};

Task<Result<std::shared_ptr<Communicator>>> split(EventLoop& loop,
                                                  std::shared_ptr<Communicator> parent,
                                                  SplitRequest request) {
  Splitting splitting(loop, *parent, std::move(request));
  std::optional<Result<std::shared_ptr<Communicator>>> outcome;
  try {
    outcome.emplace(co_await splitting.run());
  } catch (const std::bad_alloc&) {
    outcome.emplace(run_out_of_memory(*parent));
  }
  if (outcome->ok()) co_return std::move(*outcome);
  parent->detect_failure();
  co_return std::move(*outcome).error().with_context("splitting the communicator");
}

Task<Result<std::shared_ptr<Communicator>>> Splitting::run() {
  ORIEL_CO_CHECK(parent_.check_usable());
  deadline_ = Deadline::after(parent_.parts_.settings->timeout, loop_.clock());
  ORIEL_CO_TRY(boot::SplitPart part, co_await make_session());
  if (part.session == nullptr) co_return std::shared_ptr<Communicator>();
  times_.end("links");
  co_return co_await start(std::move(part));
}

Task<Result<boot::SplitPart>> Splitting::make_session() {
  boot::SplitCall call = {.color = request_.color,
                          .key = request_.key,
                          .refused = request_.refused,
                          .on_session = request_.on_session};
  auto part = co_await parent_.parts_.session->split(loop_, std::move(call), deadline_);
  if (part.ok()) co_return part;
  co_return as_seen_by(parent_.rank(), std::move(part).error()).with_scope(Scope::communicator);
}

/// Runs the same start steps as Communicator::join().
Task<Result<std::shared_ptr<Communicator>>> Splitting::start(boot::SplitPart part) {
  const int rank = part.session->rank();
  std::shared_ptr<Communicator> child(
      new Communicator(*parent_.parts_.device, *parent_.parts_.settings, options()));
  const StartingSession shown(request_, *part.session);
  std::unique_ptr<boot::Session> session = std::move(part.session);
  CommunicatorStart set_up(loop_, child->parts_, child->failure_, deadline_);
  Status started = co_await set_up.run(std::move(session), times_);
  if (started.ok()) co_return child;
  const Error error = as_seen_by(rank, std::move(started).error()).with_scope(Scope::communicator);
  co_return boot::as_seen_by_parent(error, part.members);
}

CommunicatorOptions Splitting::options() const {
  if (request_.options) return *request_.options;
  CommunicatorOptions inherited = parent_.parts_.options;
  inherited.name.clear();
  return inherited;
}

}  // namespace oriel::comm
