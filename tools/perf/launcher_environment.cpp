// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/launcher_environment.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "base/try.hpp"

namespace oriel::perf {
namespace {

// Environment variables that one kind of launcher sets for each process.
struct Names {
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;
};
constexpr std::array<Names, 4> kLaunchers{{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
}};

Result<std::optional<int>> read_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::optional<int>{};
  int value = 0;
  const std::string_view view(text);
  const auto [rest, status] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (status != std::errc{} || rest != view.data() + view.size() || value < 0)
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}='{}' in the environment is not a number", name, text));
  return std::optional<int>{value};
}

}  // namespace

Result<std::optional<LauncherEnvironment>> find_launcher() {
  for (const Names& names : kLaunchers) {
    ORIEL_TRY(const auto rank, read_number(names.rank));
    ORIEL_TRY(const auto ranks, read_number(names.ranks));
    if (!rank || !ranks) continue;
    if (*ranks < 1 || *rank >= *ranks)
      return Error(ErrorCode::invalid_argument,
                   fmt::format("{}={} and {}={} in the environment do not fit together", names.rank,
                               *rank, names.ranks, *ranks));
    ORIEL_TRY(const auto local_rank, read_number(names.local_rank));
    ORIEL_TRY(const auto local_ranks, read_number(names.local_ranks));
    ORIEL_TRY(const auto port, read_number("MASTER_PORT"));
    LauncherEnvironment found;
    found.launcher = names.rank;
    found.rank = *rank;
    found.daemon = ::getppid();
    found.ranks = *ranks;
    found.local_rank = local_rank.value_or(*rank);
    found.local_ranks = local_ranks.value_or(*ranks);
    const char* address = std::getenv("MASTER_ADDR");
    if (address != nullptr && port.value_or(0) > 0 && *port < 65536) {
      found.master_address = address;
      found.master_port = *port;
    }
    // The rendezvous store of torchrun listens on MASTER_PORT.
    found.port_in_use = std::getenv("TORCHELASTIC_RUN_ID") != nullptr;
    return std::optional<LauncherEnvironment>{std::move(found)};
  }
  return std::optional<LauncherEnvironment>{};
}

}  // namespace oriel::perf
