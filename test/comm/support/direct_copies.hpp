// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/keys/direct_windows.hpp"

namespace oriel::test {

/// Turns direct copies between near nodes on or off while the object lives, in this process and in
/// processes that it forks. Make the object before the communicators start.
class WithDirectCopies {
 public:
  explicit WithDirectCopies(bool wanted) { comm::DirectCopies::in_force().wanted = wanted; }
  WithDirectCopies(const WithDirectCopies&) = delete;
  WithDirectCopies& operator=(const WithDirectCopies&) = delete;
  ~WithDirectCopies() { comm::DirectCopies::in_force().wanted = true; }
};

}  // namespace oriel::test
