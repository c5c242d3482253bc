// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/request/call_text.hpp"

#include <fmt/format.h>

namespace oriel::comm {

std::string with_article(std::string_view name) {
  return fmt::format("{} {}", name.front() == 'a' ? "an" : "a", name);
}

std::string text_of(const kernels::CollectiveCall& call) {
  const std::string operation =
      kernels::reduces(call.collective) ? fmt::format(" ({})", name_of(call.op)) : "";
  const std::string root =
      kernels::has_root(call.collective) ? fmt::format(" with root {}", call.root) : "";
  return fmt::format("{}{} of {} x {}{}", with_article(name_of(call.collective)), operation,
                     call.count, name_of(call.type), root);
}

std::string text_of(PointToPointCounts counts) {
  if (counts.sends == 1 && counts.receives == 0) return "a send";
  if (counts.sends == 0 && counts.receives == 1) return "a receive";
  return fmt::format("a group of {} sends and {} receives", counts.sends, counts.receives);
}

std::string text_of(const CallActivity& activity) {
  if (activity.kind == CallActivity::Kind::none) return "no call";
  if (activity.kind == CallActivity::Kind::collective) return "a collective";
  std::string text = text_of(activity.counts);
  if (activity.peer >= 0) {
    text += fmt::format(" {} rank {}", activity.counts.sends > 0 ? "to" : "from", activity.peer);
  }
  return text;
}

}  // namespace oriel::comm
