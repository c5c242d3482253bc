// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/init_job.hpp"

#include <new>
#include <utility>

namespace oriel::comm {

PendingHandle::PendingHandle(std::shared_ptr<CommEntry> entry)
    : entry_(std::move(entry)), handle_(comm_table().add(entry_)) {}

PendingHandle::~PendingHandle() {
  if (entry_ == nullptr) return;
  end();
  try {
    static_cast<void>(
        entry_->finished(Error(ErrorCode::system, "out of memory while the communicator started")));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): a destructor may not throw
  }
}

void PendingHandle::show(ncclComm_t* out) {
  out_ = out;
  *out = handle_;
}

void PendingHandle::leave_to_user() {
  handle_ = nullptr;
  out_ = nullptr;
}

void PendingHandle::end() {
  if (handle_ != nullptr) comm_table().remove(handle_);
  if (out_ != nullptr) *out_ = nullptr;
  leave_to_user();
}

Status PendingHandle::finish(Result<std::shared_ptr<Communicator>> outcome) {
  Status status = entry_->finished(std::move(outcome));
  if (!status.ok() && entry_->blocking()) end();
  entry_ = nullptr;
  return status;
}

InitJob make_init_job(const boot::UniqueId& id, int rank, int size,
                      const Result<CommunicatorOptions>& options, bool blocking,
                      const Result<Device*>& device) {
  JoinRequest request;
  request.id = id;
  request.rank = rank;
  request.size = size;
  if (!options.ok()) {
    request.refused = options.error();
  } else if (!device.ok()) {
    request.refused = device.error();
  } else {
    request.options = options.value();
    request.device = device.value();
  }
  const int ordinal = device.ok() ? device.value()->ordinal() : -1;
  return {std::move(request),
          PendingHandle(std::make_shared<CommEntry>(rank, size, ordinal, blocking))};
}

}  // namespace oriel::comm
