// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/device/group.hpp"

#include "kernels/algorithms/one_shot.hpp"
#include "kernels/algorithms/two_shot.hpp"
#include "kernels/host/all_reduce_host.hpp"

namespace oriel::kernels::detail {

template <class T, Family kFamily, int kRanks>
bool run_family_on_host(Algorithm algorithm, const AllReduceArguments& arguments) {
  if (algorithm == Algorithm::one_shot) {
    return one_shot<T, kFamily, kRanks, LineFor<T>, device::Thread>(arguments, GridPlace{});
  }
  return two_shot<T, kFamily, kRanks, LineFor<T>, device::Thread>(arguments, GridPlace{});
}

template <class T>
bool run_lines_on_host(Algorithm algorithm, const AllReduceArguments& arguments) {
  switch (family_of(arguments.op)) {
    case Family::sum:
      if (arguments.ranks == 2) return run_family_on_host<T, Family::sum, 2>(algorithm, arguments);
      return run_family_on_host<T, Family::sum, 0>(algorithm, arguments);
    case Family::product:
      return run_family_on_host<T, Family::product, 0>(algorithm, arguments);
    case Family::extreme:
      return run_family_on_host<T, Family::extreme, 0>(algorithm, arguments);
  }
  return false;
}

}  // namespace oriel::kernels::detail
