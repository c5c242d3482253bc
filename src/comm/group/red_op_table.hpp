// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "oriel/error.hpp"
#include "oriel/types.hpp"

namespace oriel::comm {

/// Reduction made by a user: a pre-multiplied sum.
struct UserReduction {
  DataType type = DataType::f32;
  std::uint64_t scalar_bits = 0;         ///< the scalar's bytes, or
  const void* scalar_pointer = nullptr;  ///< address from which the device reads it
};

/// Holds the user-made reductions of one communicator, numbered from `first`. A number carries a
/// generation. So a destroyed number is recognised until its place has been reused 2^18 times.
/// Thread-safe.
class RedOpTable {
 public:
  explicit RedOpTable(int first) : first_(first) {}

  Result<int> add(const UserReduction& reduction);
  Result<UserReduction> find(int op) const;
  Status remove(int op);

 private:
  struct Place {
    UserReduction reduction;
    std::uint32_t generation = 0;
    bool taken = false;
  };
  static constexpr int kIndexBits = 12;  // 4,096 at a time; the 18 bits above hold the generation
  static constexpr int kIndexMask = (1 << kIndexBits) - 1;
  static constexpr std::uint32_t kGenerationMask = (1u << 18) - 1;

  const Place* place_of(int op) const;

  const int first_;
  mutable std::mutex mutex_;
  std::vector<Place> places_;
};

}  // namespace oriel::comm
