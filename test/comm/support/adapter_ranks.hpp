// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/mlx5/fake_verbs.hpp"
#include "net/mlx5/soft_adapters.hpp"
#include "net/mlx5/verbs_table.hpp"
#include "net/wire/socket_wire.hpp"
#include "support/ranks.hpp"
#include "topo/sources/temporary_tree.hpp"

/// Rank processes on several nodes. Each rank has one mlx5 adapter of the verbs model (3.11), whose
/// queues carry all traffic between nodes.
namespace oriel::test {

/// Returns an NCCL topology file of a machine with this adapter; an empty name gives no adapter.
inline std::string machine_with(const std::string& adapter) {
  std::string text = "<system version=\"1\">\n";
  text += "<cpu numaid=\"0\" affinity=\"0000ffff\" arch=\"x86_64\">\n";
  if (!adapter.empty()) {
    text +=
        "<pci busid=\"0000:10:00.0\" class=\"0x020700\" link_speed=\"16 GT/s\" link_width=\"8\">"
        "<nic><net name=\"" +
        adapter + "\" dev=\"0\" speed=\"400000\" port=\"1\" guid=\"0xb8c0\"/></nic></pci>\n";
  }
  return text + "</cpu>\n</system>\n";
}

/// Adapter of one rank: mlx5_0 for rank 0 and so on. While the object lives, the verbs library of
/// this process lists the adapter, and machine_file() describes the rank's machine.
class Adapter {
 public:
  struct Options {
    bool rung_by_processor = false;
    /// Answer timeout of one try. The adapter gives up a silent peer after eight such timeouts.
    Duration answer_timeout = std::chrono::seconds(4);
  };
  Adapter(int rank, std::vector<int> sockets, const Options& options)
      : model_(verbs, [](std::uint16_t lid) {
          return net::test::SocketWire::address_of(lid - kFirstLid);
        }) {
    const std::string name = "mlx5_" + std::to_string(rank);
    files_.file("/machine.xml", machine_with(name));
    verbs.has_uncached_registers = !options.rung_by_processor;
    model_.answer_timeout = options.answer_timeout;
    model_.piece_bytes = 64 << 10;
    model_.add(name, static_cast<std::uint16_t>(kFirstLid + rank),
               std::make_unique<net::test::SocketWire>(rank, std::move(sockets)));
    library_.emplace(verbs.library);
    running_.emplace(model_);
  }
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  std::string machine_file() const { return files_.root() + "/machine.xml"; }
  net::NicSoft& nic() { return model_.of(0); }
  /// Orders what the adapter has done so far before what the caller does next, for the thread
  /// sanitizer. The sanitizer takes the two mappings of a window for different memory. It therefore
  /// misses the order established by a word that the adapter writes in one mapping and the rank
  /// reads in the other.
  void sync() { static_cast<void>(nic().address(0)); }
  /// Throws if an object of verbs is left, or if a call of verbs was wrong.
  void require_clean() const {
    require(verbs.live() == 0, std::to_string(verbs.live()) + " objects of verbs are left");
    for (const std::string& violation : verbs.violations) require(false, violation);
  }

  net::test::FakeVerbs verbs;

 private:
  static constexpr int kFirstLid = 7;
  topo::TemporaryTree files_;
  net::test::SoftAdapters model_;
  std::optional<net::ScopedVerbsLibrary> library_;
  std::optional<net::test::RunningAdapters> running_;  // destroyed first
};

using AdapterBody = std::function<void(TestRanks&, Adapter&)>;

/// Runs ranks on these nodes (one per rank). Fails if a rank leaves an object of verbs behind.
inline void run_on_adapters(const std::vector<int>& nodes, const Adapter::Options& options,
                            const Variables& variables, const AdapterBody& body) {
  Variables all = {{"ORIEL_BACKEND", "host"},
                   {"ORIEL_SOCKET_IFNAME", "lo"},
                   {"ORIEL_CPU_AFFINITY", "0"},
                   {"ORIEL_NIC", "mlx5"},
                   {"ORIEL_SCRATCH_SIZE", "4M"}};
  all.insert(all.end(), variables.begin(), variables.end());
  const Environment environment(all);
  const auto ranks = static_cast<int>(nodes.size());
  net::test::SocketMesh sockets(ranks);
  check_all_ok(run_ranks(
      LaunchMode::processes, ranks,
      [&](TestRanks& test_ranks) {
        const int rank = test_ranks.first();
        Adapter adapter(rank, sockets.take(rank), options);
        const int node = nodes[static_cast<std::size_t>(rank)];
        const Environment own(Variables{{"ORIEL_HOSTID", "node" + std::to_string(node)},
                                        {"ORIEL_TOPO_FILE", adapter.machine_file()}});
        body(test_ranks, adapter);
        test_ranks.barrier();  // before this, peers may still wait for this adapter's answers
        adapter.require_clean();
      },
      std::chrono::seconds(100)));
}

}  // namespace oriel::test
