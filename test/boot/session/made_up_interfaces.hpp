// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include <ifaddrs.h>
#include <net/if.h>

#include "base/system_table.hpp"
#include "boot/auth/socket_address.hpp"

namespace oriel::boot {

/// Replaces this host's list of network interfaces for the object's lifetime.
class MadeUpInterfaces {
 public:
  struct Entry {
    const char* name;
    unsigned flags;
    SocketAddress address;
  };
  explicit MadeUpInterfaces(std::vector<Entry> entries) {
    entries_ = std::move(entries);
    static const SystemTable table = [] {
      SystemTable made = real_system_table();
      made.getifaddrs = list;
      return made;
    }();
    scoped_.emplace(table);
  }

 private:
  /// Returns one block that begins with the first entry, as glibc's freeifaddrs() expects.
  static int list(ifaddrs** out) {
    struct Node {
      ifaddrs entry;
      sockaddr_storage address;
    };
    auto* nodes = static_cast<Node*>(std::calloc(entries_.size(), sizeof(Node)));
    if (nodes == nullptr) return -1;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      static_cast<void>(entries_[i].address.to_native(nodes[i].address));
      nodes[i].entry.ifa_name = const_cast<char*>(entries_[i].name);
      nodes[i].entry.ifa_flags = entries_[i].flags;
      nodes[i].entry.ifa_addr = reinterpret_cast<sockaddr*>(&nodes[i].address);
      if (i > 0) nodes[i - 1].entry.ifa_next = &nodes[i].entry;
    }
    *out = &nodes->entry;
    return 0;
  }

  static inline std::vector<Entry> entries_;
  std::optional<ScopedSystemTable> scoped_;
};

}  // namespace oriel::boot
