// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <random>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda_table.hpp"
#include "comm/fault_outcome.hpp"
#include "comm/init_fault_cuda.hpp"

// The same with the real driver. The test itself never initialises CUDA, because its forked ranks
// could not use it then.
namespace oriel::test {
namespace {

/// Asked in a child. The program ends as skipped where there is no GPU.
int count_gpus() {
  const pid_t child = ::fork();
  if (child == 0) {
    int found = 0;
    if (cuda_ready().ok()) static_cast<void>(cuda().device_get_count(&found));
    ::_exit(std::min(found, 100));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const int found = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  if (found == 0) {
    std::printf("skipped: needs a GPU\n");
    std::fflush(stdout);
    ::_exit(77);
  }
  return found;
}
const int kGpus = count_gpus();

DriverWalk walk_on_gpus(Cast cast, long stride) {
  const long seed = number_from("ORIEL_TEST_SEED", static_cast<long>(std::random_device{}() >> 1));
  DriverWalk walk{false, std::min(kGpus, 3), cast, number_from("ORIEL_TEST_STRIDE", stride), seed};
  WARN(describe(walk) << ", ORIEL_TEST_STRIDE=" << walk.stride << " ORIEL_TEST_SEED=" << seed);
  return walk;
}

}  // namespace

TEST_CASE("1.41 whichever driver call of init to destroy fails on GPUs, all agree") {
  walk_again(walk_on_gpus(Cast::threads, 1));
  walk_again(walk_on_gpus(Cast::processes, 3));
}

// Starting CUDA takes longer than all else, so this is a sample of the calls.
TEST_CASE("1.41 whichever driver call of a process's first communicator on GPUs fails, all agree") {
  walk_at_first(walk_on_gpus(Cast::threads, 17));
  walk_at_first(walk_on_gpus(Cast::processes, 41));
}

}  // namespace oriel::test
