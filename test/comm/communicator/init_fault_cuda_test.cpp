// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/init_fault_cuda.hpp"

#include <random>

#include <catch2/catch.hpp>

#include "comm/support/fault_outcome.hpp"

// On the model of the CUDA driver: what one device or two can be, without a GPU.
namespace oriel::test {
namespace {

template <class WalkIt>
void for_all_casts(const WalkIt& walk_it) {
  const long stride = number_from("ORIEL_TEST_STRIDE", 1);
  const long seed = number_from("ORIEL_TEST_SEED", static_cast<long>(std::random_device{}() >> 1));
  WARN("ORIEL_TEST_STRIDE=" << stride << " ORIEL_TEST_SEED=" << seed);
  for (const Cast cast : {Cast::threads, Cast::processes}) {
    for (const int devices : {1, 2}) walk_it({true, devices, cast, stride, seed});
  }
}

}  // namespace

TEST_CASE("whichever driver call of init to destroy fails on whichever rank, all agree",
          "[req:1.41]") {
  for_all_casts([](const DriverWalk& walk) { walk_again(walk); });
}

TEST_CASE("whichever driver call of a process's first communicator fails, all agree",
          "[req:1.41]") {
  for_all_casts([](const DriverWalk& walk) { walk_at_first(walk); });
}

}  // namespace oriel::test
