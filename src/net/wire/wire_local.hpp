// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "net/wire/wire.hpp"

namespace oriel::net {

/// Wires between the NICs of one process. Thread-safe: each NIC has its own lock, and so has each
/// inbox.
class LocalExchange {
 public:
  static constexpr std::size_t kInboxMost = 1024;  ///< messages queued for one NIC

  LocalExchange();
  ~LocalExchange();
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;

  /// Returns the wire of a new NIC; it may outlive the exchange.
  std::unique_ptr<Wire> attach();

 private:
  class End;
  struct Inboxes;
  std::shared_ptr<Inboxes> inboxes_;
};

}  // namespace oriel::net
