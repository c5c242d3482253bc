// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/all_reduce_host.hpp"

#include "oriel/device/group.hpp"

#include "kernels/algorithms/eager_all_reduce.hpp"
#include "kernels/algorithms/mover_host.hpp"
#include "kernels/algorithms/stream.hpp"

namespace oriel::kernels {

void run_all_reduce_on_host(Algorithm algorithm, const AllReduceArguments& arguments) {
  switch (algorithm) {
    case Algorithm::one_shot:
      return one_shot_on_host(arguments);
    case Algorithm::two_shot:
      return two_shot_on_host(arguments);
    case Algorithm::stream:
      return StreamAllReduce<device::Thread, HostMover>(arguments, GridPlace{}).run();
  }
}

}  // namespace oriel::kernels
