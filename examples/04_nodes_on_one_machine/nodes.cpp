// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Simulates two nodes of two ranks on one machine:
//   ORIEL_BACKEND=host oriel-run -n 4 04_nodes_on_one_machine
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../common/launched.hpp"

int main() {
  constexpr std::size_t kCount = 1000;
  const Launched me = Launched::from_environment();
  // Ranks with the same host id form one node. Set the id before the first call of Oriel.
  const std::string node = "node-" + std::to_string(me.rank / 2);
  setenv("ORIEL_HOSTID", node.c_str(), 1);

  auto comm = must(oriel::Communicator::init(share_unique_id(me), me.rank, me.ranks));
  if (comm.cuda_device() >= 0) {
    std::printf("skipped: ranks live on GPUs; set ORIEL_BACKEND=host\n");
    return 77;
  }
  std::string team;
  for (const int rank : comm.lsa_team()) team += " " + std::to_string(rank);

  auto memory = must(comm.allocate(kCount * sizeof(float)));
  auto window = must(comm.register_window(memory));
  auto* const data = static_cast<float*>(window.data());
  for (std::size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(me.rank + 1);
  must(comm.all_reduce({.input = data, .output = data, .count = kCount}));

  // Loads reach the ranks of this rank's node; collectives and world_put() reach the others.
  const int far = (me.rank + 2) % me.ranks;
  const bool reached = window.view().world_peer(far, 0, sizeof(float)) != nullptr;
  std::printf("rank %d on %s: ranks%s by loads, rank %d %s; sum %g\n", me.rank, node.c_str(),
              team.c_str(), far, reached ? "too" : "by a queue", data[kCount - 1]);
  return 0;
}
