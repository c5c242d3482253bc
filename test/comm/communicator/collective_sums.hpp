// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/api_ranks.hpp"

namespace oriel::test {

/// Runs each collective of the C++ interface, and checks it against results known in advance.
inline void collect(Communicator& comm, std::size_t count) {
  const auto size = static_cast<std::size_t>(comm.size());
  const auto self = static_cast<std::size_t>(comm.rank());
  const auto value = [](std::size_t rank, std::size_t at) {
    return static_cast<std::int64_t>((rank + 1) * 1000003 + at * 7);
  };
  const auto sum = [&](std::size_t at) {
    std::int64_t all = 0;
    for (std::size_t rank = 0; rank < size; ++rank) all += value(rank, at);
    return all;
  };
  std::vector<std::int64_t> mine(size * count), all(size * count, -1);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = value(self, i);
  must(comm.all_reduce(
      {.input = mine.data(), .output = all.data(), .count = size * count, .type = DataType::i64}));
  for (std::size_t i = 0; i < all.size(); ++i) test::require(all[i] == sum(i), "an all-reduce");
  must(comm.all_gather(
      {.input = mine.data(), .output = all.data(), .count = count, .type = DataType::i64}));
  for (std::size_t i = 0; i < all.size(); ++i) {
    test::require(all[i] == value(i / count, i % count), "an all-gather");
  }
  must(comm.reduce_scatter(
      {.input = mine.data(), .output = all.data(), .count = count, .type = DataType::i64}));
  for (std::size_t i = 0; i < count; ++i) {
    test::require(all[i] == sum(self * count + i), "a reduce-scatter");
  }
}

}  // namespace oriel::test
