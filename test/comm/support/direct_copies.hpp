// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/keys/direct_windows.hpp"

namespace oriel::test {

/// While it lives, communicators of this process and of processes that it forks copy between near
/// nodes directly, or not at all. Made before the communicators start.
class WithDirectCopies {
 public:
  explicit WithDirectCopies(bool wanted) { comm::DirectCopies::in_force().wanted = wanted; }
  WithDirectCopies(const WithDirectCopies&) = delete;
  WithDirectCopies& operator=(const WithDirectCopies&) = delete;
  ~WithDirectCopies() { comm::DirectCopies::in_force().wanted = true; }
};

}  // namespace oriel::test
