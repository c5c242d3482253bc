// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "oriel/error.hpp"

#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// What may be done to registered memory through its key; a sum of these. Its owner's NIC may
/// always read it.
enum Access : std::uint8_t {
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  kRemoteAtomic = 8,
};

/// Who can touch memory: the processor, or a GPU's copy engine.
enum class MemoryPlace : std::uint8_t { host, gpu };

/// Memory to be registered.
struct MemoryRange {
  std::uint64_t address = 0;    ///< as entries name it
  std::uint64_t bytes = 0;      ///< not 0
  std::byte* memory = nullptr;  ///< where the NIC itself finds it; may be mapped elsewhere
  std::uint8_t access = 0;      ///< what peers may write or change, the owner may write too
  MemoryPlace place = MemoryPlace::host;
  /// Of a GPU's memory: words on which peers' atomics act are changed by this NIC alone, so it need
  /// not read them again each time. True of signals.
  bool own_words = false;
};

/// The keys of registered memory: everything that the NIC touches for an entry or a peer goes
/// through here. A key is good for one range and the rights it was made with. Key 0 is never one,
/// and no key comes again before 2^32 others have been made, so that one that was given back is not
/// taken for a new one. Not thread-safe: the NIC's lock guards it.
class MemoryKeys {
 public:
  MemoryKeys() = default;
  /// Another `start` gives other keys, so that one NIC's are none of another's.
  explicit MemoryKeys(std::uint32_t start) : start_(start), made_(start) {}

  /// Where memory was found, or why not.
  struct Found {
    std::byte* memory = nullptr;
    Syndrome syndrome = Syndrome::none;
    MemoryPlace place = MemoryPlace::host;
    bool own_words = false;
  };

  Result<std::uint32_t> add(const MemoryRange& range);
  Status remove(std::uint32_t key);
  /// The range that was registered; null if there is no such key.
  const MemoryRange* range_of(std::uint32_t key) const;

  /// For this side of an entry: local_protection unless all of the range may be read, or written.
  /// No bytes need no key.
  Found find_local(std::uint32_t key, std::uint64_t address, std::uint64_t bytes, bool write) const;
  /// For what a peer asks: remote_access unless all of the range may be accessed as `right` says;
  /// remote_gone if it could be once, with a key that has been given back.
  Found find_remote(std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                    Access right) const;

 private:
  Found find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes, std::uint8_t rights,
             Syndrome otherwise) const;
  bool is_given_back(std::uint32_t key) const;

  std::map<std::uint32_t, MemoryRange> keys_;
  std::uint32_t start_ = 0;
  std::uint32_t made_ = 0;  // the last one's number, from start_ on
};

}  // namespace oriel::net
