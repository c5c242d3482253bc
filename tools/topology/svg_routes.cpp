// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topology/svg_routes.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "topo/choice/reach.hpp"

namespace oriel::tools {
namespace {

constexpr double kApart = 8;        // least distance between routes of one track
constexpr double kPortStep = 12;    // greatest distance between lines at one edge of a device
constexpr double kFirstPort = 12;   // first line, beside the team's line in the middle
constexpr double kEdge = 6;         // free margin of a device's box
constexpr double kBackupPort = 14;  // line to a backup, to the right of the GPU's middle
constexpr double kOtherPort = 28;   // line to a NIC that the GPU above it has not chosen

/// Assigns each route the first track in which it touches no other route. Short routes come first,
/// so that they stay near their devices.
template <typename Item>
int assign_tracks(std::vector<Item>& items) {
  std::vector<Route*> order;
  for (Item& item : items) {
    if (item.route.right() > item.route.left()) order.push_back(&item.route);
  }
  std::stable_sort(order.begin(), order.end(), [](const Route* a, const Route* b) {
    return std::pair(a->right() - a->left(), a->left()) <
           std::pair(b->right() - b->left(), b->left());
  });
  std::vector<std::vector<const Route*>> tracks;
  for (Route* route : order) {
    const auto is_free = [&](const std::vector<const Route*>& track) {
      return std::all_of(track.begin(), track.end(), [&](const Route* other) {
        return other->right() + kApart < route->left() || route->right() + kApart < other->left();
      });
    };
    const auto track = std::find_if(tracks.begin(), tracks.end(), is_free);
    route->track = static_cast<int>(track - tracks.begin());
    if (track == tracks.end()) {
      tracks.push_back({route});
    } else {
      track->push_back(route);
    }
  }
  return static_cast<int>(tracks.size());
}

/// Places the ports of one side of a GPU, from the middle outward. Links to far GPUs leave nearest
/// the middle, so that they pass above links to near GPUs without crossing them.
void place_ports(const Box& box, std::vector<std::pair<double, double*>> far_to_near, int side) {
  std::sort(far_to_near.begin(), far_to_near.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  const double width = box.width / 2 - kEdge - kFirstPort;
  const double step = std::min(
      kPortStep, width / static_cast<double>(std::max<std::size_t>(far_to_near.size(), 2) - 1));
  double offset = kFirstPort;
  for (auto& [distance, port] : far_to_near) {
    *port = box.centre() + side * offset;
    offset += step;
  }
}

const Box& box_at(const std::vector<Box>& boxes, int index) {
  return boxes[static_cast<std::size_t>(index)];
}

}  // namespace

double Route::left() const {
  double least = upper.empty() ? lower.front() : upper.front();
  for (const auto* ends : {&upper, &lower}) {
    for (const double x : *ends) least = std::min(least, x);
  }
  return least;
}

double Route::right() const {
  double most = upper.empty() ? lower.front() : upper.front();
  for (const auto* ends : {&upper, &lower}) {
    for (const double x : *ends) most = std::max(most, x);
  }
  return most;
}

int direct_links(const Summary& summary, int a, int b) {
  int most = 0;
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const topo::GpuPair* pair = topo::find_pair(summary.machine, from, to);
    if (pair != nullptr) most = std::max(most, pair->links);
  }
  return most;
}

bool are_joined_directly(const Summary& summary, const std::vector<int>& gpus) {
  return std::all_of(gpus.begin(), gpus.end(), [&](int a) {
    return std::all_of(gpus.begin(), gpus.end(),
                       [&](int b) { return a == b || direct_links(summary, a, b) > 0; });
  });
}

std::vector<Link> links_to_draw(const Summary& summary) {
  std::vector<bool> joined;
  joined.reserve(summary.teams.size());
  for (const auto& team : summary.teams) joined.push_back(are_joined_directly(summary, team));
  std::vector<Link> links;
  const auto count = static_cast<int>(summary.machine.gpus.size());
  for (int a = 0; a < count; ++a) {
    for (int b = a + 1; b < count; ++b) {
      const int team = summary.team[static_cast<std::size_t>(a)];
      const bool together = team == summary.team[static_cast<std::size_t>(b)];
      const int direct = direct_links(summary, a, b);
      const bool there = topo::may_map(summary.machine, a, b);
      const bool back = topo::may_map(summary.machine, b, a);
      const bool shown = together ? direct > 0 && !joined[static_cast<std::size_t>(team)]
                                  : direct > 0 || there || back;
      if (!shown) continue;
      const bool turned = back && !there;
      links.push_back({turned ? b : a, turned ? a : b, direct, there != back, {{}, {0, 0}, -1}});
    }
  }
  if (links.size() > kMostLinks) links.clear();
  return links;
}

std::vector<Wire> wires_to_draw(const Summary& summary) {
  std::map<std::pair<bool, int>, Wire> wires;  // key: (is primary, NIC)
  for (const topo::NicChoice& choice : summary.nics) {
    if (choice.backup >= 0) wires[{false, choice.backup}] = {choice.backup, true, {}};
    if (choice.primary >= 0) wires[{true, choice.primary}] = {choice.primary, false, {}};
  }
  std::vector<Wire> list;
  list.reserve(wires.size());
  for (auto& [key, wire] : wires) list.push_back(std::move(wire));
  return list;
}

int find_ways(const Layout& layout, std::vector<Link>& links) {
  // Ports by GPU and side (-1: left, 1: right), each with the distance of the link's other end.
  std::map<std::pair<int, int>, std::vector<std::pair<double, double*>>> ports;
  for (Link& link : links) {
    const Box& a = box_at(layout.gpus, link.from);
    const Box& b = box_at(layout.gpus, link.to);
    const int side = a.centre() < b.centre() ? 1 : -1;
    const double distance = std::abs(b.centre() - a.centre());
    ports[{link.from, side}].emplace_back(distance, &link.route.lower[0]);
    ports[{link.to, -side}].emplace_back(distance, &link.route.lower[1]);
  }
  for (auto& [place, list] : ports) {
    place_ports(box_at(layout.gpus, place.first), std::move(list), place.second);
  }
  return assign_tracks(links);
}

int find_ways(const Summary& summary, const Layout& layout, std::vector<Wire>& wires) {
  for (Wire& wire : wires) {
    const double centre = box_at(layout.nics, wire.nic).centre();
    bool chosen_above = false;  // the GPU above the NIC has chosen the NIC
    bool any_above = false;
    wire.route = {};
    for (std::size_t gpu = 0; gpu < summary.nics.size(); ++gpu) {
      const bool above = layout.gpus[gpu].centre() == centre;
      any_above = any_above || above;
      const topo::NicChoice& choice = summary.nics[gpu];
      if ((wire.backup ? choice.backup : choice.primary) != wire.nic) continue;
      chosen_above = chosen_above || above;
      wire.route.upper.push_back(layout.gpus[gpu].centre() + (wire.backup ? kBackupPort : 0));
    }
    // If the GPU above has a line of this kind to another NIC, this wire keeps clear of that line.
    const bool free = chosen_above || !any_above;
    const double port = wire.backup ? (free ? kBackupPort : -kBackupPort) : (free ? 0 : kOtherPort);
    wire.route.lower = {centre + port};
  }
  return assign_tracks(wires);
}

}  // namespace oriel::tools
