// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "comm/support/model_gpu.hpp"
#include "comm/support/stall_log.hpp"
#include "support/process_state.hpp"

namespace oriel::test {

TEST_CASE("a stalled GPU rank says so at the default log level, with the rank that it waits for",
          "[req:1.12][req:5.3][D7]") {
  using namespace std::chrono_literals;
  const StallLog log;
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    const FakeCuda& model =
        model_with_current_device(FakeCuda::Options{.devices = 2}, test_ranks.first());
    auto comm = join(test_ranks, {.name = "tensors"});
    const auto kernels = must(comm.device_comm());
    if (test_ranks.first() == 0) {
      std::atomic<bool> ended = false;
      const std::jthread reader([&] {
        static_cast<void>(eventually([&] { return log.lines(::getpid()).size() >= 2; }));
        ended = true;
      });
      // Waits as a kernel's thread does.
      const auto outcome =
          device::wait_until([&] { return ended.load(); }, kernels.view().wait, {.rank = 1});
      require(outcome == device::WaitOutcome::ready, "the wait");
      const auto lines = log.lines(::getpid());
      require(lines.size() >= 2, "two lines");
      require_words(lines.back(), {"WARN stalled: rank 0 of \"tensors\" has waited for ",
                                   " in a kernel of the user's for rank 1 (",
                                   "; rank 1 has made no call; hint: "});
    }
    test_ranks.barrier();
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

}  // namespace oriel::test
