// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oriel/types.hpp"

#include "kernels/algorithms/reference.hpp"
#include "kernels/plan/collective.hpp"

/// Calls that all ranks of a communicator draw alike from a seed, and their expected results.
namespace oriel::test {

/// A collective call.
struct DrawnCollective {
  kernels::Collective collective = kernels::Collective::broadcast;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  Inputs inputs = Inputs::moderate;
  std::size_t count = 0;
  int size = 1;  ///< size of the communicator
  int root = 0;
  bool in_place = false;
  std::uint64_t seed = 0;

  std::size_t bytes() const { return count * size_of(type); }
  bool sends(int rank) const;
  bool receives(int rank) const;
  std::size_t sent_bytes() const;
  std::size_t received_bytes() const;
  std::string text() const;
};

/// A message between two ranks. Messages of a pair arrive in the order of the calls.
struct DrawnMessage {
  int from = 0;
  int to = 0;
  DataType type = DataType::u8;
  std::size_t count = 0;
  std::uint64_t seed = 0;

  std::size_t bytes() const { return count * size_of(type); }
  std::vector<std::byte> data() const;
  std::string text() const;
};

/// Limits of the draws.
struct DrawLimits {
  bool is_large = false;   ///< one block may be larger than the ring of a channel
  bool any_inputs = true;  ///< NaN and infinities, too, for bitwise comparison
};
DrawnCollective draw_collective(std::uint64_t seed, int size, const DrawLimits& limits);
/// Returns one message, a ring, all pairs, or a burst of more messages than one launch carries.
std::vector<DrawnMessage> draw_messages(std::uint64_t seed, int size, const DrawLimits& limits);

/// Inputs of all ranks of a collective, and the expected output of each rank.
class CollectiveReference {
 public:
  explicit CollectiveReference(const DrawnCollective& call);

  const std::vector<std::byte>& input(int rank) const { return inputs_[at(rank)]; }
  /// Returns the bytes of a rank's factor of ReduceOp::premul_sum.
  std::uint64_t scalar(int rank) const { return scalars_[at(rank)]; }
  /// Returns what is wrong with the output of `rank`, or an empty string. Sums of floats may differ
  /// in their roundings unless `exact`.
  std::string compare(int rank, const std::byte* output, bool exact) const;

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::string compare_sums(int rank, const std::byte* output, bool exact) const;
  std::vector<std::byte> moved_to(int rank) const;

  DrawnCollective call_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::uint64_t> scalars_;
};

}  // namespace oriel::test
