// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace oriel::net {

/// Translates the keys in a queue's WQEs to those of another path. Each NIC assigns its own keys to
/// memory, and WQEs carry the keys of the path for which they were written. Local keys belong to
/// this rank's NIC, rkeys to the peer's NIC. A key without an alias stays unchanged, and the
/// other NIC does not know it. Thread-safe.
class KeyAliases {
 public:
  void add_local(std::uint32_t key, std::uint32_t alias) { add(local_, key, alias); }
  void remove_local(std::uint32_t key) { remove(local_, key); }
  void add_remote(std::uint32_t key, std::uint32_t alias) { add(remote_, key, alias); }
  void remove_remote(std::uint32_t key) { remove(remote_, key); }

  std::uint32_t local(std::uint32_t key) const { return find(local_, key); }
  std::uint32_t remote(std::uint32_t key) const { return find(remote_, key); }

 private:
  using Map = std::map<std::uint32_t, std::uint32_t>;
  void add(Map& map, std::uint32_t key, std::uint32_t alias) {
    const std::lock_guard lock(mutex_);
    map[key] = alias;
  }
  void remove(Map& map, std::uint32_t key) {
    const std::lock_guard lock(mutex_);
    map.erase(key);
  }
  std::uint32_t find(const Map& map, std::uint32_t key) const {
    const std::lock_guard lock(mutex_);
    const auto it = map.find(key);
    return it == map.end() ? key : it->second;
  }

  mutable std::mutex mutex_;
  Map local_;
  Map remote_;
};

}  // namespace oriel::net
