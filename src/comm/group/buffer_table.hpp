// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_set>

#include "oriel/error.hpp"

namespace oriel::comm {

/// A buffer that a user means to use in collectives of one communicator (ncclCommRegister).
struct RegisteredBuffer {
  const void* address = nullptr;
  std::size_t bytes = 0;
};

/// The buffers that are registered with one communicator. A handle of another communicator, or of a
/// registration that has ended, is recognised. The destructor ends what is left. Thread-safe.
class BufferTable {
 public:
  BufferTable() = default;
  ~BufferTable() { clear(); }
  BufferTable(const BufferTable&) = delete;
  BufferTable& operator=(const BufferTable&) = delete;

  /// Returns the new registration's handle, which no other one of the process has.
  void* add(const RegisteredBuffer& buffer);
  /// Ends a registration and returns what it was of; invalid_argument for any other handle.
  Result<RegisteredBuffer> remove(void* handle);
  /// Ends all registrations.
  void clear();

 private:
  std::mutex mutex_;
  std::unordered_set<void*> handles_;
};

}  // namespace oriel::comm
