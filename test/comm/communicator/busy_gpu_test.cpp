// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "api/api_ranks.hpp"
#include "comm/support/model_gpu.hpp"
#include "support/fair_timer.hpp"

// Set-up on a GPU that is busy with other work, on the model of the CUDA driver.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

void live_well(TestRanks& test_ranks) {
  auto comm = join(test_ranks);
  const auto kernels = must(comm.device_comm());
  test_ranks.barrier();
}

/// Runs two ranks, each on its own device of its own driver model.
void run_two(const std::function<void(TestRanks&, FakeCuda&)>& body) {
  const Environment environment(
      Variables{{"ORIEL_BACKEND", "cuda"}, {"ORIEL_TIMEOUT", "2s"}, {"ORIEL_SCRATCH_SIZE", "1M"}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    FakeCuda& model =
        model_with_current_device(FakeCuda::Options{.devices = 2}, test_ranks.first());
    body(test_ranks, model);
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

/// Checks that `call` fails on all ranks within twice ORIEL_TIMEOUT because rank 1's GPU is busy.
template <class Call>
void expect_too_busy(const Call& call) {
  const FairTimer timer;
  must_fail(call(), ErrorCode::timeout, {"rank 1: ", "GPU 1 has been too busy", "ORIEL_TIMEOUT"});
  const auto spent = timer.spent();
  require(spent < 4s, fmt::format("{} ms", spent.count()));
}

}  // namespace

TEST_CASE("a start on a GPU that stays busy ends by its deadline, on all ranks", "[req:1.12]") {
  run_two([](TestRanks& test_ranks, FakeCuda& model) {
    for (int i = 0; i < 2; ++i) live_well(test_ranks);
    const FakeCuda::Held before = model.held();
    model.fill_devices(test_ranks.first() == 1);
    expect_too_busy([&] { return try_to_join(test_ranks); });
    // Memory stays allocated while the GPU may still write to it.
    const FakeCuda::Held kept = model.held();
    require(kept.streams == before.streams + (test_ranks.first() == 1 ? 1 : 0), "streams");
    model.fill_devices(false);
    live_well(test_ranks);
    require(model.held() == before, "everything is freed in the end");
  });
}

TEST_CASE("a device communicator on a GPU that stays busy fails by its deadline", "[req:1.12]") {
  run_two([](TestRanks& test_ranks, FakeCuda& model) {
    live_well(test_ranks);
    {
      auto comm = join(test_ranks);
      { const auto kernels = must(comm.device_comm()); }
      test_ranks.barrier();
      const FakeCuda::Held before = model.held();
      model.fill_devices(test_ranks.first() == 1);
      expect_too_busy([&] { return comm.device_comm(); });
      model.fill_devices(false);
      { const auto kernels = must(comm.device_comm()); }
      require(model.held() == before, "everything is freed in the end");
      test_ranks.barrier();
    }
  });
}

TEST_CASE("a start waits for a GPU that is busy for a while", "[req:1.12]") {
  run_two([](TestRanks& test_ranks, FakeCuda& model) {
    model.fill_devices(test_ranks.first() == 1);
    std::jthread other([&] {
      std::this_thread::sleep_for(300ms);
      model.fill_devices(false);
    });
    auto comm = join(test_ranks);
    test_ranks.barrier();
    other.join();
  });
}

}  // namespace oriel::test
