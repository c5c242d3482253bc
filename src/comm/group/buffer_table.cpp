// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/buffer_table.hpp"

#include <memory>

#include "comm/group/handle_table.hpp"

namespace oriel::comm {
namespace {

/// Returns the table of all registrations of this process. So no two communicators have the same
/// handle.
HandleTable<RegisteredBuffer, void*>& buffer_handles() {
  // Never destroyed: threads of the application may still call while the process exits.
  static auto* const table = new HandleTable<RegisteredBuffer, void*>;
  return *table;
}

}  // namespace

void* BufferTable::add(const RegisteredBuffer& buffer) {
  const std::lock_guard lock(mutex_);
  auto made = std::make_shared<RegisteredBuffer>(buffer);
  void* const handle = buffer_handles().add(std::move(made));
  try {
    handles_.insert(handle);
  } catch (...) {
    buffer_handles().remove(handle);
    throw;
  }
  return handle;
}

Result<RegisteredBuffer> BufferTable::remove(void* handle) {
  const std::lock_guard lock(mutex_);
  if (handles_.erase(handle) == 0) {
    return Error(ErrorCode::invalid_argument,
                 "the handle is of no registration of the communicator")
        .with_hint(
            "pass each handle of ncclCommRegister once, with the communicator that it is of");
  }
  return *buffer_handles().remove(handle);
}

void BufferTable::clear() {
  const std::lock_guard lock(mutex_);
  for (void* const handle : handles_) buffer_handles().remove(handle);
  handles_.clear();
}

}  // namespace oriel::comm
