// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/nic_assigner.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "topo/choice/nic_choice.hpp"

namespace oriel::topo {

NicCosts nic_costs(const Machine& machine, const std::vector<DevicePlace>& devices) {
  NicCosts costs;
  for (const DevicePlace& device : devices) {
    std::vector<NicCost>& row = costs.emplace_back();
    row.reserve(machine.nics.size());
    for (const Nic& nic : machine.nics) row.push_back(nic_cost(machine, device, nic));
  }
  return costs;
}

NicAssigner::NicAssigner(const Machine& machine, const PortSpeeds& speeds, Nic::Layer layer,
                         const NicCosts& costs)
    : machine_(machine), speeds_(speeds), layer_(layer), costs_(costs) {
  for (const auto& row : costs) candidates_.push_back(nearest(row));
  const std::vector<Nic>& nics = machine.nics;
  cards_ = groups_of(nics.size(), [&](auto i, auto j) { return same_card(nics[i], nics[j]); });
  users_.resize(machine.nics.size());
  card_users_.resize(machine.nics.size(), 0);
  used_.resize(costs.size(), nullptr);
  for (std::size_t device = 0; device < costs.size(); ++device) assign(device);
}

double NicAssigner::least_share() const {
  double least = 0;
  for (std::size_t device = 0; device < used_.size(); ++device) {
    if (used_[device] == nullptr) continue;
    const double share = speed_of(used_[device]->port) / static_cast<double>(users(device));
    if (least == 0 || share < least) least = share;
  }
  return least;
}

/// Returns a port's speed; an unknown speed counts as the fastest.
double NicAssigner::speed_of(int port) const {
  const double gbps = speeds_.gbps(port);
  return gbps > 0 ? gbps : speeds_.fastest() > 0 ? speeds_.fastest() : 1;
}

/// Returns whether a device may use a port through this NIC: both have the assigner's layer, and
/// the port is not slow.
bool NicAssigner::is_fit(int nic) const {
  const auto layer_of = [&](int index) { return machine_.nics[at(index)].layer; };
  const int port = speeds_.port_of(nic);
  return port >= 0 && !speeds_.is_slow(port) && layer_of(port) == layer_ && layer_of(nic) == layer_;
}

/// Returns the nearest ports of the layer, without slow ones. Of equally near NICs of a port, the
/// NIC that stands for the port comes first, then physical ones.
std::vector<NicAssigner::Candidate> NicAssigner::nearest(const std::vector<NicCost>& costs) const {
  std::map<int, int> nearest;  // NIC by port
  const NicCost* least = nullptr;
  for (int nic = 0; nic < static_cast<int>(costs.size()); ++nic) {
    if (!is_fit(nic)) continue;
    const int port = speeds_.port_of(nic);
    if (least != nullptr && costs[at(nic)] > *least) continue;
    if (least == nullptr || costs[at(nic)] < *least) nearest.clear();
    least = &costs[at(nic)];
    const auto rank_of = [&](int one) {
      return std::pair(one != port, machine_.nics[at(one)].physical.has_value());
    };
    int& own = nearest.try_emplace(port, nic).first->second;
    if (rank_of(nic) < rank_of(own)) own = nic;
  }
  std::vector<Candidate> candidates;
  candidates.reserve(nearest.size());
  for (const auto& [port, nic] : nearest) candidates.push_back({port, nic});
  return candidates;
}

/// Compares two ports for one more user. The greater remaining share is better, then fewer users,
/// then a card with fewer users.
bool NicAssigner::is_better(int port, int other) const {
  const auto users = static_cast<double>(users_[at(port)].size() + 1);
  const auto others = static_cast<double>(users_[at(other)].size() + 1);
  const double left = speed_of(port) * others;
  const double left_there = speed_of(other) * users;
  const auto of_card = [&](int one) { return card_users_[at(cards_[at(one)])]; };
  return std::tuple(-left, users, of_card(port)) < std::tuple(-left_there, others, of_card(other));
}

/// Assigns a port to a device so that the smallest share stays as great as possible. Other devices
/// may move to ports that are equally near to them. Takes the best port that can gain a user this
/// way. (A shortest augmenting path at each step keeps the assignment optimal so far.)
void NicAssigner::assign(std::size_t device) {
  const std::vector<Step> steps = steps_from(device);
  if (steps.empty()) return;
  int step = 0;
  for (int i = 1; i < static_cast<int>(steps.size()); ++i) {
    if (is_better(steps[at(i)].to->port, steps[at(step)].to->port)) step = i;
  }
  ++card_users_[at(cards_[at(steps[at(step)].to->port)])];
  for (; step >= 0; step = steps[at(step)].from) {
    const Step& change = steps[at(step)];
    if (change.from >= 0) users_[at(used_[change.device]->port)].erase(change.device);
    used_[change.device] = change.to;
    users_[at(change.to->port)].insert(change.device);
  }
}

/// Returns all possible end ports, those with the fewest moves first.
std::vector<NicAssigner::Step> NicAssigner::steps_from(std::size_t device) const {
  std::vector<Step> steps;
  std::vector<char> seen(machine_.nics.size(), 0);
  const auto add = [&](std::size_t engine, int from) {
    for (const Candidate& one : candidates_[engine]) {
      if (seen[at(one.port)] != 0) continue;
      seen[at(one.port)] = 1;
      steps.push_back({&one, engine, from});
    }
  };
  add(device, -1);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const std::size_t user : users_[at(steps[i].to->port)]) add(user, static_cast<int>(i));
  }
  return steps;
}

}  // namespace oriel::topo
