// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "oriel/api.hpp"
#include "oriel/error.hpp"

namespace oriel {

/// Credentials for joining a communicator: the address at which its ranks meet, and a secret that
/// authenticates them. 128 bytes without pointers, in the format of an ncclUniqueId. The user sends
/// the bytes to all ranks over a trusted channel.
///
/// Example: creates an id and sends it to another rank through a pipe.
/// ```cpp
/// #include <cstdio>
/// oriel::Result<oriel::UniqueId> share_new_id(std::FILE* pipe) {
///   oriel::Result<oriel::UniqueId> id = oriel::UniqueId::create();
///   if (id.ok() && std::fwrite(id->bytes.data(), id->bytes.size(), 1, pipe) != 1) {
///     return oriel::Error(oriel::ErrorCode::system, "cannot send the id");
///   }
///   return id;
/// }
/// ```
struct UniqueId {
  std::array<std::byte, 128> bytes{};  ///< the id; all zeros are no valid id

  /// Creates an id for one communicator, or for one failed attempt to start one. If no rank has
  /// joined 10 minutes later, the id expires. This process serves the meeting point until all ranks
  /// have joined. Local; does not block, nor wait for the network; any thread may call it.
  /// Errors: system (no usable network interface), invalid_usage (an invalid setting, which the
  /// error names).
  ORIEL_API static Result<UniqueId> create();
};

}  // namespace oriel
