// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/split_job.hpp"

#include <utility>

namespace oriel::comm {

SplitJob make_split_job(std::shared_ptr<CommEntry> entry,
                        std::shared_ptr<Communicator> communicator, SplitRequest request,
                        ncclComm_t* out) {
  SplitJob job{{std::move(entry), std::move(communicator)}, std::move(request)};
  if (!job.request.color || out == nullptr) return job;
  const bool blocking = job.request.options ? job.request.options->blocking : job.entry->blocking();
  auto child = std::make_shared<CommEntry>(job.entry->device(), blocking);
  job.handle.emplace(child);
  job.handle->show(out);
  job.request.on_session = [child](boot::Session* session) { child->starts_on(session); };
  return job;
}

void conclude(SplitJob& job, Result<std::shared_ptr<Communicator>> outcome) {
  if (!job.handle) {
    if (!outcome.ok()) job.state.outcome = std::move(outcome).error();
    return;
  }
  job.state.outcome = job.handle->finish(std::move(outcome));
  // A call that returns an error leaves no handle. A background call has left the handle to the
  // user.
  if (!job.state.outcome.ok()) job.handle->end();
}

Task<void> run_split(EventLoop& loop, SplitJob& job) {
  SplitRequest request = job.request;
  std::shared_ptr<Communicator> parent = job.communicator;
  auto outcome = co_await split(loop, std::move(parent), std::move(request));
  conclude(job, std::move(outcome));
}

}  // namespace oriel::comm
