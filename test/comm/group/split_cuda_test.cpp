// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "comm/support/model_gpu.hpp"
#include "support/ranks.hpp"

// Communicators of GPU ranks split from another communicator, on the model of the CUDA driver.
namespace oriel::test {
namespace {

TEST_CASE("a split of GPU ranks keeps the parent's device, and registers windows without it",
          "[req:5.25]") {
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}});
  check_all_ok(run_ranks(LaunchMode::processes, 4, [](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const FakeCuda& model = model_with_current_device(FakeCuda::Options{.devices = 4}, rank);
    auto world = test_ranks.init();
    std::vector<ncclComm_t> made(2);
    require(ncclCommSplit(world[0], rank % 2, -rank, &made[0], nullptr), "ncclCommSplit");
    const int color = rank == 2 ? NCCL_SPLIT_NOCOLOR : 5;
    require(ncclCommSplit(world[0], color, 0, &made[1], nullptr), "ncclCommSplit");
    require((rank == 2) == (made[1] == nullptr), "a handle for each rank with a color");
    if (made[1] == nullptr) made.pop_back();
    test_ranks.destroy(world);
    for (ncclComm_t comm : made) {
      int place = -1, device = -1;
      require(ncclCommUserRank(comm, &place), "ncclCommUserRank");
      require(ncclCommCuDevice(comm, &device), "ncclCommCuDevice");
      const int expected = comm == made[0] ? 1 - rank / 2 : rank - rank / 3;
      require(place == expected && device == rank, "the place and the device");
      const Buffer buffer(std::size_t{2} << 20);
      const auto windows = test_ranks.register_windows({comm}, {buffer.at()}, std::size_t{2} << 20);
      require(windows[0] != nullptr, "a window");
      require(ncclCommWindowDeregister(comm, windows[0]), "ncclCommWindowDeregister");
    }
    test_ranks.destroy(made);
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

}  // namespace
}  // namespace oriel::test
