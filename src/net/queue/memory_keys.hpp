// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "oriel/error.hpp"

#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// Access rights of a memory key; combine them with |. The NIC of the memory's owner may always
/// read.
enum Access : std::uint8_t {
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  kRemoteAtomic = 8,
};

/// Kind of memory: the processor accesses host memory, the GPU's copy engine accesses GPU memory.
enum class MemoryPlace : std::uint8_t { host, gpu };

/// Memory to be registered.
struct MemoryRange {
  std::uint64_t address = 0;    ///< address used in WQEs
  std::uint64_t bytes = 0;      ///< not 0
  std::byte* memory = nullptr;  ///< NIC's pointer to the range; may be another mapping
  std::uint8_t access = 0;  ///< sum of Access; peers' write or atomic access requires kLocalWrite
  MemoryPlace place = MemoryPlace::host;
  /// For GPU memory: only this NIC changes the words on which peers' atomics act. The NIC then need
  /// not read them again for each atomic. True for signals.
  bool own_words = false;
};

/// Memory keys: the NIC finds all memory of a WQE or a peer here. A key is valid for one range and
/// the rights with which it was made. Key 0 is never valid. A key is not reused before 2^32 others
/// have been made. Hence a deregistered key is not mistaken for a new one. Not thread-safe: the
/// NIC's lock guards it.
class MemoryKeys {
 public:
  MemoryKeys() = default;
  /// Starts the sequence of keys at `start`. NICs with random starts rarely have equal keys.
  explicit MemoryKeys(std::uint32_t start) : start_(start), made_(start) {}

  /// Result of a lookup: the memory, or the syndrome that says why not.
  struct Found {
    std::byte* memory = nullptr;
    Syndrome syndrome = Syndrome::none;
    MemoryPlace place = MemoryPlace::host;
    bool own_words = false;
  };

  Result<std::uint32_t> add(const MemoryRange& range);
  Status remove(std::uint32_t key);
  /// Returns the registered range; null if there is no such key.
  const MemoryRange* range_of(std::uint32_t key) const;

  /// Finds the local buffer of a WQE. The syndrome is local_protection unless the whole range may
  /// be read, or written if `write`. Zero bytes need no key.
  Found find_local(std::uint32_t key, std::uint64_t address, std::uint64_t bytes, bool write) const;
  /// Finds memory for a peer's request. The syndrome is remote_access unless `right` holds for the
  /// whole range. The syndrome is remote_gone instead if the key was deregistered.
  Found find_remote(std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                    Access right) const;

 private:
  Found find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes, std::uint8_t rights,
             Syndrome otherwise) const;
  bool is_deregistered(std::uint32_t key) const;

  std::map<std::uint32_t, MemoryRange> keys_;
  std::uint32_t start_ = 0;
  std::uint32_t made_ = 0;  // number of the last key, counted from start_
};

}  // namespace oriel::net
