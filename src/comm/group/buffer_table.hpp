// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_set>

#include "oriel/error.hpp"

namespace oriel::comm {

/// User buffer registered for collectives of one communicator (ncclCommRegister).
struct RegisteredBuffer {
  const void* address = nullptr;
  std::size_t bytes = 0;
};

/// Holds the buffers registered with one communicator. Recognises handles of other communicators
/// and of ended registrations. The destructor ends the remaining registrations. Thread-safe.
class BufferTable {
 public:
  BufferTable() = default;
  ~BufferTable() { clear(); }
  BufferTable(const BufferTable&) = delete;
  BufferTable& operator=(const BufferTable&) = delete;

  /// Returns the handle of the new registration, unique in the process.
  void* add(const RegisteredBuffer& buffer);
  /// Ends a registration and returns its buffer; invalid_argument for any other handle.
  Result<RegisteredBuffer> remove(void* handle);
  /// Ends all registrations.
  void clear();

 private:
  std::mutex mutex_;
  std::unordered_set<void*> handles_;
};

}  // namespace oriel::comm
