// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/machine.hpp"

#include <catch2/catch.hpp>

#include "support/words.hpp"
#include "topo/machine/machines.hpp"

namespace oriel::topo {

using test::has;

TEST_CASE("PCI addresses are read in all their spellings and written in one", "[req:2.1]") {
  const auto text = [](const char* given) {
    const auto address = parse_pci_address(given);
    return address.ok() ? address->to_string() : "refused";
  };
  CHECK(text("0000:1b:00.0") == "0000:1b:00.0");
  CHECK(text("00000000:1B:00.0") == "0000:1b:00.0");
  CHECK(text("1b:1f.7") == "0000:1b:1f.7");
  CHECK(text("10000:01:00.0") == "10000:01:00.0");
  for (const char* bad : {"", ":", "1b", "1b:00", "0000:1b:00", "0000:1b:20.0", "0000:1b:00.8",
                          "0000:100:00.0", "0000:1b:00.0 ", " 0000:1b:00.0", "0000:1b:-1.0",
                          "0000:1b:0x1.0", "123456789:1b:00.0", "0000:1b:00.", "a:b:c:d.0"}) {
    INFO(bad);
    CHECK(text(bad) == std::string("refused"));
  }
}

TEST_CASE("descriptions that contradict themselves are refused with the place", "[req:2.7]") {
  const auto result = [](Machine machine) {
    const Status status = check(machine);
    return status.ok() ? std::string("ok") : status.error().to_string();
  };
  const auto refused = [&](const char* words, auto change) {
    Machine machine = hgx_8();
    change(machine);
    const std::string said = result(machine);
    INFO(said);
    CHECK(has(said, words));
  };
  refused("NUMA node 0 is listed twice", [](Machine& m) { m.numa[1].os_index = 0; });
  refused("NUMA node 0 has 3 distances", [](Machine& m) { m.numa[0].distances.push_back(1); });
  refused("PCI node 2: its parent is 5", [](Machine& m) { m.pci[2].parent = 5; });
  refused("PCI node 2: its parent is -1", [](Machine& m) { m.pci[2].parent = -1; });
  refused("is below a device", [](Machine& m) { m.pci[1].kind = PciNode::Kind::device; });
  refused("has no address", [](Machine& m) { m.pci[1].address.reset(); });
  refused("is listed twice", [](Machine& m) { m.pci[2].address = m.pci[1].address; });
  refused("its NUMA node is 9", [](Machine& m) { m.gpus[3].numa = 9; });
  refused("its PCI node is -2", [](Machine& m) { m.gpus[3].node = -2; });
  refused("GPU 1 ", [](Machine& m) { m.gpus[1].uuid = m.gpus[0].uuid; });
  refused("the pair of GPUs (0, 8)", [](Machine& m) { m.pairs[0].to = 8; });
  refused("the pair of GPUs (0, 0)", [](Machine& m) { m.pairs[0].to = 0; });
  refused("the pair of GPUs (0, 1)", [](Machine& m) { m.pairs.push_back(m.pairs[0]); });
  refused("NIC mlx5_0:1 is listed twice", [](Machine& m) { m.nics[1].name = "mlx5_0"; });
}

}  // namespace oriel::topo
