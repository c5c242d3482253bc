// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "support/rank_memory.hpp"
#include "support/ranks.hpp"

/// Random all-reduces of ranks of any kind, compared with a reference.
namespace oriel::test {

/// Returns a well-mixed hash of both numbers.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);
/// Returns a hash, which is never 0.
std::uint64_t hash_bytes(const std::byte* bytes, std::size_t count);

/// Returns `calls` scaled by ORIEL_TEST_PERCENT.
int scaled(int calls);

/// A tuning table in a file that streams all sizes. `seed` draws chunk size, depth and lead.
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
  std::uint64_t seed = 0;  ///< for what all ranks draw alike: types, counts, places, values
  int calls = 0;
  std::size_t most = 0;  ///< most elements of a call
  std::chrono::milliseconds timeout = std::chrono::seconds(100);
};

/// Runs a batch of random calls among `ranks` ranks and CHECKs each. Results must equal the
/// reference bit by bit on every rank, and agree with a computation in higher precision. Bytes
/// around the output, and the input, must stay unchanged. Returns true if all was right.
bool run_batch(const MemoryFactory& factory, LaunchMode launch_mode, int ranks,
               const Variables& variables, const BatchOptions& options);

}  // namespace oriel::test
