// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "oriel/communicator.hpp"

#include "support/ranks.hpp"

/// Ranks that use the C++ interface, for tests.
namespace oriel::test {

/// Returns the value, or throws an exception with the error's text.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().to_string());
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

/// Throws unless `result` is an error with this code whose text contains every word.
template <class T>
void must_fail(const Result<T>& result, ErrorCode code, const std::vector<std::string>& words) {
  require(!result.ok(), "it succeeded");
  const std::string text = result.error().to_string();
  require(result.error().code() == code,
          fmt::format("{}, not {}: {}", to_string(result.error().code()), to_string(code), text));
  require_words(text, words);
}

/// Joins a communicator over all ranks as `rank`, which may differ from this process's rank.
inline Result<Communicator> try_to_join_as(TestRanks& test_ranks, int rank,
                                           const CommunicatorOptions& options = {}) {
  const ncclUniqueId bytes = test_ranks.next_id();
  UniqueId id;
  std::memcpy(id.bytes.data(), bytes.internal, id.bytes.size());
  return Communicator::init(id, rank, test_ranks.size(), options);
}
inline Result<Communicator> try_to_join(TestRanks& test_ranks) {
  return try_to_join_as(test_ranks, test_ranks.first());
}
inline Communicator join_as(TestRanks& test_ranks, int rank,
                            const CommunicatorOptions& options = {}) {
  return must(try_to_join_as(test_ranks, rank, options));
}
inline Communicator join(TestRanks& test_ranks, const CommunicatorOptions& options = {}) {
  return join_as(test_ranks, test_ranks.first(), options);
}

/// Runs an all-reduce in which every rank adds one.
inline void add_one(Communicator& comm) {
  int value = 1;
  must(comm.all_reduce({.input = &value, .output = &value, .count = 1, .type = DataType::i32}));
  require(value == comm.size(), "the sum");
}
/// Throws if the communicator has an error.
inline void require_no_error(const Communicator& comm) {
  const auto error = comm.async_error();
  require(!error, error ? error->to_string() : "");
}

}  // namespace oriel::test
