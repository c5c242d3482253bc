// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "comm/support/model_gpu.hpp"
#include "comm/support/stall_log.hpp"
#include "support/process_state.hpp"

namespace oriel::test {

namespace {

/// Runs two ranks as processes, each with a communicator on a GPU of the model. Calls `body` with
/// the rank, the communicator and the control of its kernels' waits. Then checks the model's rules.
template <class Body>
void run_gpu_ranks(const CommunicatorOptions& options, const Body& body) {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    const FakeCuda& model =
        model_with_current_device(FakeCuda::Options{.devices = 2}, test_ranks.first());
    auto comm = join(test_ranks, options);
    const auto kernels = must(comm.device_comm());
    test_ranks.barrier();
    body(test_ranks.first(), comm, kernels.view().wait);
    test_ranks.barrier();
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

/// Waits for rank 0 as a kernel's thread does, until the wait is given up.
void wait_in_vain(const device::WaitControl& control) {
  const auto outcome = device::wait_until([] { return false; }, control, {.rank = 0});
  require(outcome != device::WaitOutcome::ready, "the wait");
}

}  // namespace

TEST_CASE("a stalled GPU rank says so at the default log level, with the rank that it waits for",
          "[req:1.12][req:5.3][D7]") {
  const StallLog log;
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}});
  run_gpu_ranks({.name = "tensors"}, [&](int rank, const auto& /*comm*/, const auto& control) {
    if (rank != 0) return;
    std::atomic<bool> ended = false;
    const std::jthread reader([&] {
      static_cast<void>(eventually([&] { return log.lines(::getpid()).size() >= 2; }));
      ended = true;
    });
    // Waits as a kernel's thread does.
    const auto outcome = device::wait_until([&] { return ended.load(); }, control, {.rank = 1});
    require(outcome == device::WaitOutcome::ready, "the wait");
    const auto lines = log.lines(::getpid());
    require(lines.size() >= 2, "two lines");
    require_words(lines.back(),
                  {"WARN stalled: rank 0 of \"tensors\" has waited for ",
                   " in a kernel of the user's for rank 1 (", "; rank 1 has made no call; hint: "});
  });
}

TEST_CASE("a GPU rank that waits for CTAs of its own grid says so at the default log level",
          "[req:5.3][D7][D9]") {
  const StallLog log;
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}});
  run_gpu_ranks({}, [&](int rank, auto& comm, const auto& control) {
    if (rank != 0) return;
    const std::jthread ending([&] {
      static_cast<void>(eventually([&] { return log.lines(::getpid()).size() >= 2; }));
      comm.abort();
    });
    wait_in_vain(control);
    const auto lines = log.lines(::getpid());
    require(lines.size() >= 2, "two lines");
    require_words(lines.back(), {"WARN stalled: rank 0 has waited for ",
                                 " in a kernel of the user's for its own CTAs (not started, or",
                                 "; hint: end other kernels that fill the GPU; "});
    require(lines.back().find("does not answer") == std::string::npos, lines.back());
  });
}

TEST_CASE("CTAs that do not start are named after the timeout, by their rank or one that waits",
          "[req:1.12][D9]") {
  const int first = GENERATE(0, 1);  // the rank whose wait times out
  const Environment environment(
      Variables{{"ORIEL_BACKEND", "cuda"}, {"ORIEL_COLLECTIVE_TIMEOUT", "3s"}});
  run_gpu_ranks({}, [&](int rank, auto& comm, device::WaitControl control) {
    if (rank != first) control.timeout_ns *= 10;
    wait_in_vain(control);
    require(eventually([&] { return comm.async_error().has_value(); }), "no error");
    const Error error = *comm.async_error();
    require(error.code() == ErrorCode::timeout && error.origin_rank() == 0, error.to_string());
    require_words(error.to_string(),
                  {first == 0 ? "a kernel of rank 0 has waited for its own CTAs longer than "
                                "ORIEL_COLLECTIVE_TIMEOUT"
                              : "rank 1 has waited longer than ORIEL_COLLECTIVE_TIMEOUT for rank "
                                "0, a kernel of which waits for its own CTAs",
                   "; hint: end other kernels that fill that rank's GPU"});
  });
}

}  // namespace oriel::test
