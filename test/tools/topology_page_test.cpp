// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// What docs/topology.md shows of oriel-topo.
#include <fstream>
#include <sstream>
#include <string>

#include <catch2/catch.hpp>

#include "program.hpp"

namespace {

const std::string kRoot = ORIEL_TEST_SOURCE_DIR;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// What the program prints when it is called in the source tree.
std::string run_in_tree(const std::string& arguments) {
  const std::string line = "cd '" + kRoot + "' && '" ORIEL_TOPO_PATH "' " + arguments;
  const auto result = run_program({"/bin/sh", "-c", line});
  CHECK(result.status == 0);
  return result.out;
}

}  // namespace

TEST_CASE("2.8 the examples of docs/topology.md are what oriel-topo prints") {
  const std::string command = "    $ oriel-topo ";
  std::istringstream page(text_of(kRoot + "/docs/topology.md"));
  int examples = 0;
  std::string line;
  bool more = static_cast<bool>(std::getline(page, line));
  while (more) {
    if (!line.starts_with(command)) {
      more = static_cast<bool>(std::getline(page, line));
      continue;
    }
    const std::string arguments = line.substr(command.size());
    INFO("oriel-topo " << arguments);
    std::string shown;
    while ((more = static_cast<bool>(std::getline(page, line)))) {
      if (!line.empty() && !line.starts_with("    ")) break;
      shown += (line.empty() ? line : line.substr(4)) + "\n";
    }
    while (shown.ends_with("\n\n")) shown.pop_back();  // what parts it from the text below
    CHECK(shown == run_in_tree(arguments));
    ++examples;
  }
  CHECK(examples > 0);
  // After a change: oriel-topo --file test/topo/fixtures/hgx-8.nccl.xml --svg >
  // docs/topology-hgx.svg
  CHECK(text_of(kRoot + "/docs/topology-hgx.svg") ==
        run_in_tree("--file test/topo/fixtures/hgx-8.nccl.xml --svg"));
}
