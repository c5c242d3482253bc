// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/version.hpp"

namespace oriel {

const char* version() {
  return ORIEL_VERSION;
}

}  // namespace oriel
