// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/failing_memory.hpp"
#include "support/ranks.hpp"

/// Memory runs out in the middle of a call, on the caller's thread or on one that the call has
/// started: the call ends with an error, and the process goes on.
namespace oriel::test {
namespace {

TEST_CASE("a group of all-reduces that runs out of memory ends with an error",
          "[req:1.31][req:1.38]") {
  run_alone([] {
    long failures = 0;
    for (long k = 0;; ++k) {
      ncclComm_t comms[3];
      require(ncclCommInitAll(comms, 3, nullptr), "ncclCommInitAll");
      float data[3] = {1, 2, 3};
      ncclResult_t result = ncclSuccess;
      std::vector<ncclResult_t> noted(3);
      const bool hit = with_failure(k, [&] {
        result = ncclGroupStart();
        for (std::size_t i = 0; i < 3; ++i) {
          noted[i] = ncclAllReduce(&data[i], &data[i], 1, ncclFloat, ncclSum, comms[i], nullptr);
        }
        result = ncclGroupEnd();
      });
      const bool complete = data[0] == 6 && data[1] == 6 && data[2] == 6;
      require(result == ncclSuccess ? complete : result == ncclSystemError || !complete,
              fmt::format("allocation {}: {}", k, static_cast<int>(result)));
      for (const ncclResult_t one : noted) {
        if (one == ncclSuccess) continue;
        require(one == ncclSystemError && result == ncclSystemError,
                fmt::format("allocation {}: {} in a group that returned {}", k,
                            static_cast<int>(one), static_cast<int>(result)));
      }
      if (result != ncclSuccess) {
        ++failures;
        require(!std::string(ncclGetLastError(nullptr)).empty(), "the error's text");
      }
      for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
      if (!hit) break;
      require(k < 1000, "allocations without end");
    }
    require(failures >= 5, fmt::format("{} failures", failures));
  });
}

TEST_CASE("a start of several ranks that runs out of memory leaves no group open",
          "[req:1.31][req:1.38]") {
  const Environment brief(Variables{{"ORIEL_TIMEOUT", "300ms"}});
  run_alone([] {
    long failures = 0;
    for (long k = 0;; k += 4) {
      ncclComm_t comms[2] = {nullptr, nullptr};
      ncclResult_t result = ncclSuccess;
      const bool hit = with_failure(
          k, [&] { result = ncclCommInitAll(comms, 2, nullptr); }, Whose::callers);
      const bool both = comms[0] != nullptr && comms[1] != nullptr;
      require(result != ncclSuccess || both, fmt::format("allocation {}: no handles", k));
      for (ncclComm_t comm : comms) {
        if (comm != nullptr) require(ncclCommDestroy(comm), "ncclCommDestroy");
      }
      failures += result != ncclSuccess ? 1 : 0;
      require(ncclGroupEnd() == ncclInvalidUsage, fmt::format("allocation {}: a group is open", k));
      if (!hit) break;
      require(k < 5000, "allocations without end");
    }
    require(failures >= 5, fmt::format("{} failures", failures));
    ncclComm_t comms[2] = {nullptr, nullptr};
    require(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll");
    for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

}  // namespace
}  // namespace oriel::test
