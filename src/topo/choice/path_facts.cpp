// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/path_facts.hpp"

#include <fmt/format.h>

namespace oriel::topo {

std::string text_of(const PathFacts& path) {
  std::string text(name_of(path.kind));
  if (path.hops > 0) text += fmt::format(", {} hop{}", path.hops, path.hops == 1 ? "" : "s");
  if (path.bandwidth_class > 0) {
    text += fmt::format(", from {} Gbit/s", std::uint64_t{1} << (path.bandwidth_class - 1));
  }
  return text;
}

}  // namespace oriel::topo
