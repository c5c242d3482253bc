// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace oriel::test {

/// Returns the libfabric provider for tests: ORIEL_TEST_FABRIC_PROVIDER if set. The default,
/// tcp;ofi_rxm, is in every libfabric; newer ones also have "tcp", with endpoints of its own.
inline const char* fabric_provider() {
  const char* const named = std::getenv("ORIEL_TEST_FABRIC_PROVIDER");
  return named != nullptr && *named != '\0' ? named : "tcp;ofi_rxm";
}

}  // namespace oriel::test
