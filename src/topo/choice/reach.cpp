// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/reach.hpp"

#include <algorithm>

namespace oriel::topo {

bool may_map(const Machine& machine, int from, int to) {
  if (from == to) return true;
  const GpuPair* pair = find_pair(machine, from, to);
  return pair != nullptr && pair->maps.value_or(pair->links > 0);
}

bool reach_is_known(const Machine& machine, int from, int to) {
  const auto gpu = [&](int index) -> const Gpu& {
    return machine.gpus[static_cast<std::size_t>(index)];
  };
  if (from == to || gpu(from).mig_instance >= 0 || gpu(to).mig_instance >= 0) return true;
  if (gpu(from).vendor != gpu(to).vendor) return true;
  const GpuPair* pair = find_pair(machine, from, to);
  return pair != nullptr && (pair->maps || pair->links > 0);
}

std::vector<std::vector<int>> reach_lists(const Machine& machine) {
  const auto count = static_cast<int>(machine.gpus.size());
  std::vector<std::vector<int>> lists(machine.gpus.size());
  for (int owner = 0; owner < count; ++owner) {
    for (int from = 0; from < count; ++from) {
      if (may_map(machine, from, owner)) lists[static_cast<std::size_t>(owner)].push_back(from);
    }
  }
  return lists;
}

std::vector<std::vector<int>> form_mutual_groups(
    int count, const std::function<bool(int from, int to)>& reaches) {
  std::vector<std::vector<int>> groups;
  for (int one = 0; one < count; ++one) {
    const auto fits = [&](const std::vector<int>& members) {
      return std::all_of(members.begin(), members.end(),
                         [&](int member) { return reaches(one, member) && reaches(member, one); });
    };
    auto group = std::find_if(groups.begin(), groups.end(), fits);
    if (group == groups.end()) group = groups.insert(group, std::vector<int>());
    group->push_back(one);
  }
  return groups;
}

}  // namespace oriel::topo
