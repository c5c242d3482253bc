// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "oriel/api.hpp"
#include "oriel/error.hpp"

namespace oriel {

/// What every rank must hold to join a communicator: where its ranks meet, and the secret that
/// proves that they belong to it. 128 bytes without pointers, the same as an ncclUniqueId's; the
/// user brings them to all ranks over a channel that the user trusts.
struct UniqueId {
  std::array<std::byte, 128> bytes{};

  /// A new id, for one communicator or one failed attempt to start one; it expires if no rank has
  /// come 10 minutes later. This process serves the meeting until all ranks have joined. Local,
  /// does not wait for the network, any thread. Errors: system (no interface can be used),
  /// invalid_usage (a bad setting, named).
  ORIEL_API static Result<UniqueId> create();
};

}  // namespace oriel
