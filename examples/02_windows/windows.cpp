// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Ranks read each other's windows by plain loads:
//   ORIEL_BACKEND=host oriel-run -n 3 02_windows
#include <cstdio>
#include <numeric>

#include "../common/launched.hpp"

int main() {
  constexpr int kCount = 4;
  constexpr std::size_t kBytes = kCount * sizeof(int);
  const Launched me = Launched::from_environment();
  auto comm = must(oriel::Communicator::init(share_unique_id(me), me.rank, me.ranks));
  if (comm.cuda_device() >= 0) {
    std::printf("skipped: ranks live on GPUs; set ORIEL_BACKEND=host\n");
    return 77;
  }

  // Every rank registers the same number of bytes. A window and its memory are released with these
  // objects.
  auto memory = must(comm.allocate(kBytes));
  auto window = must(comm.register_window(memory));
  auto* const mine = static_cast<int*>(window.data());
  std::iota(mine, mine + kCount, 10 * me.rank);

  // An all-reduce returns after all ranks have entered it. Writes before it are then visible.
  int arrived = 1;
  must(comm.all_reduce(
      {.input = &arrived, .output = &arrived, .count = 1, .type = oriel::DataType::i32}));

  // The view returns the address of a range in any rank's window, or null.
  const oriel::device::WindowView view = window.view();
  const int next = (me.rank + 1) % me.ranks;
  const auto* const theirs = static_cast<const int*>(view.world_peer(next, 0, kBytes));
  std::printf("rank %d of %d reads %d %d %d %d from rank %d\n", me.rank, arrived, theirs[0],
              theirs[1], theirs[2], theirs[3], next);
  const bool refused = view.world_peer(next, kBytes - 4, 8) == nullptr &&  // past the end
                       view.world_peer(me.ranks, 0, 4) == nullptr;         // no such rank
  std::printf("rank %d: ranges outside are %s\n", me.rank, refused ? "refused" : "NOT refused");

  // Keeps each window until no other rank reads it.
  must(comm.all_reduce(
      {.input = &arrived, .output = &arrived, .count = 1, .type = oriel::DataType::i32}));
  return refused ? 0 : 1;
}
