// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/collective.hpp"

namespace oriel::perf {

using kernels::Collective;
/// Pseudo-collective: each rank sends to the next rank and receives from the previous one, in one
/// group.
inline constexpr auto kSendReceive = static_cast<Collective>(kernels::kCollectiveCount);
enum class BackendKind { automatic, cuda, host };
/// Selects the buffers that become symmetric windows. `local`: none, but ncclCommRegister of both.
enum class Registration { none, local, both, in, out };
enum class Placement { out_of_place, in_place };

/// One library to measure.
struct Contestant {
  std::string library;
  Registration registration = Registration::none;
  std::vector<std::pair<std::string, std::string>> environment;
};

struct Options {
  Collective collective = Collective::all_reduce;
  std::vector<std::size_t> sizes;   ///< requested sizes in bytes
  std::vector<std::size_t> counts;  ///< elements; measured before `sizes`
  std::vector<DataType> types;
  std::vector<ReduceOp> ops;
  std::vector<Placement> placements;
  std::optional<int> iterations;  ///< calls in one round; unset: 20, on CPUs by their duration
  int warmup = 5;
  bool check = true;
  int graph_launches = 0;       ///< 0: no graph
  bool blocking_calls = false;  ///< wait for each call before the next
  int rounds = 0;               ///< 0: 5, or 9 with `against`
  int rotate = 0;               ///< buffer sets; 0: by size, see rotation()
  double jitter_us = 0;         ///< 0: no pass with random delays
  std::uint64_t seed = 1;
  int root = 0;          ///< root rank, for collectives with a root
  int blocks = 0;        ///< CTAs of a collective; 0: the library's choice
  int ranks = 0;         ///< 0: from a launcher, else one per GPU, else 2
  bool threads = false;  ///< ranks are threads of one process
  int per_node = 0;      ///< ranks per simulated node on this host; 0: no simulated nodes
  BackendKind backend = BackendKind::automatic;
  Contestant ours;
  std::optional<Contestant> against;
  std::string rendezvous;  ///< host:port or file:PATH where a launcher's ranks meet
  std::string json_path;
  bool percentiles = false;           ///< p99 columns at the end of each row
  bool serve = false;                 ///< rounds on demand from standard input
  std::chrono::seconds timeout{120};  ///< timeout of each request to the ranks
  std::string size_summary;           ///< for the table's header: how the sizes were given
};

/// Returns the options of a command line, or the exit status after printing help, the version or an
/// error. The positional argument is the name of the collective.
std::variant<Options, int> parse_options(int argc, char** argv);

/// Parses a size in bytes such as "4K", "64MiB", "1g" or "17". Units are powers of 1024, as in
/// nccl-tests.
Result<std::size_t> parse_bytes(std::string_view text);

/// Parse the names of nccl-tests ("float", "half", "f8e4m3") and of Oriel ("f32", "f16", "e4m3").
Result<DataType> parse_type(std::string_view name);
Result<ReduceOp> parse_op(std::string_view name);
constexpr bool works_in_place(Collective collective) {
  return collective != Collective::all_to_all && collective != kSendReceive;
}
/// Returns the number of blocks of `count` elements in the larger of a call's buffers.
constexpr int blocks_of(Collective collective, int ranks) {
  return sends_blocks(collective) || receives_blocks(collective) ? ranks : 1;
}
/// Return the name that nccl-tests prints; for a collective, the name of its program ("alltoall").
std::string_view table_name(Collective collective);
std::string_view table_name(DataType type);
std::string_view table_name(ReduceOp op);
std::string_view name_of(Registration registration);
std::string_view name_of(Placement placement);

/// Returns the number of buffer sets used in turn, each with `bytes` to send and `bytes` to
/// receive. It is Options::rotate, or enough sets to exceed 128 MiB, at most 8.
int rotation(const Options& options, std::size_t bytes);

}  // namespace oriel::perf
