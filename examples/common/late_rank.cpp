// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// A job that hangs, for docs/hang.md: the last rank comes SECONDS late to an all-reduce, or dies.
//   ORIEL_BACKEND=host oriel-run -n 3 late_rank SECONDS|die
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "launched.hpp"

int main(int argc, char** argv) {
  const Launched me = Launched::from_environment();
  auto comm = must(oriel::Communicator::init(share_unique_id(me), me.rank, me.ranks));
  float sum = 1;
  must(comm.all_reduce({.input = &sum, .output = &sum, .count = 1}));
  if (me.rank == me.ranks - 1 && argc > 1) {
    const std::string how = argv[1];
    if (how == "die") std::quick_exit(0);
    std::this_thread::sleep_for(std::chrono::seconds(std::atoi(how.c_str())));
  }
  const auto done = comm.all_reduce({.input = &sum, .output = &sum, .count = 1});
  if (done.ok()) {
    std::printf("rank %d: %g\n", me.rank, sum);
  } else {
    std::printf("rank %d: %s\n", me.rank, done.error().to_string().c_str());
  }
  return done.ok() ? 0 : 1;
}
