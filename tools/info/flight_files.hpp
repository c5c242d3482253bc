// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "comm/request/flight_recorder.hpp"

namespace oriel::tools {

/// One recorded collective, send or receive of a rank.
struct NotedCall {
  comm::FlightKind kind = comm::FlightKind::collective;
  kernels::CollectiveCall call;  ///< `root` is the peer of a send or receive
  std::uint64_t number = 0;
  std::optional<bool> ended;  ///< empty if the file does not say, as for captured calls
};

/// The validated content of a rank's file in ORIEL_DUMP_DIR. Texts from the file have printable
/// characters only, so that they can go to a terminal. `path` stays as given. Ranks are below
/// `ranks`.
struct FlightFile {
  std::string path;
  std::string communicator;  ///< number of the communicator, in hexadecimal
  std::string name;
  std::string reason;
  int rank = 0;
  int ranks = 1;
  std::vector<NotedCall> calls;
};

/// Reads and checks one file of a flight recorder. Errors name the file and the fault.
Result<FlightFile> read_flight_file(const std::string& path);

/// Returns the paths of the files of flight recorders in a folder, sorted.
Result<std::vector<std::string>> find_flight_files(const std::string& folder);

}  // namespace oriel::tools
