// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace oriel::test {

/// The provider of libfabric that tests ask for: the one that every libfabric has, or what
/// ORIEL_TEST_FABRIC_PROVIDER names, as in tcp for the endpoints that newer ones have of their own.
inline const char* fabric_provider() {
  const char* const named = std::getenv("ORIEL_TEST_FABRIC_PROVIDER");
  return named != nullptr && *named != '\0' ? named : "tcp;ofi_rxm";
}

}  // namespace oriel::test
