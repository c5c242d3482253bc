// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "support/rank_memory.hpp"
#include "support/ranks.hpp"

/// Random all-reduces compared with a reference, for ranks of any kind.
namespace oriel::test {

/// A well-mixed function of both.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);
/// Never 0.
std::uint64_t hash_bytes(const std::byte* bytes, std::size_t count);

/// `calls`, scaled by ORIEL_TEST_PERCENT.
int scaled(int calls);

/// A table in a file that streams everything, in chunks and with a depth that `seed` draws.
class StreamTable {
 public:
  StreamTable(const char* backend, std::uint64_t seed);
  ~StreamTable();
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;
  Variables::value_type variable() const { return {"ORIEL_TABLE", path_}; }

 private:
  std::string path_;
};

struct BatchOptions {
  std::uint64_t seed = 0;  ///< of what all ranks draw alike: types, counts, places, values
  int calls = 0;
  std::size_t most = 0;  ///< elements of a call
  std::chrono::milliseconds patience = std::chrono::seconds(100);
};

/// Runs a batch of random calls among `ranks` ranks and CHECKs each: the bits of the reference, the
/// same on every rank; a computation in higher precision; bytes around the output and the input
/// unchanged. Whether all was right.
bool run_batch(const Venue& venue, Cast cast, int ranks, const Variables& variables,
               const BatchOptions& options);

}  // namespace oriel::test
