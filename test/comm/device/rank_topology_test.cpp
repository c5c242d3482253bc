// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// The topology that ranks compute from each other's messages, and their agreement on it.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "api/api_ranks.hpp"
#include "base/fd.hpp"
#include "boot/link/rank_group.hpp"
#include "boot/link/sim_transport.hpp"
#include "comm/device/topology.hpp"
#include "support/fair_timer.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::test {
namespace {

using namespace std::chrono_literals;

topo::RankInfo on_host(int rank) {
  topo::RankInfo info = topo::host_rank_info(topo::NodeIdentity{1, 2});
  info.process = static_cast<std::uint64_t>(rank) + 1;
  info.numa = 0;
  return info;
}

std::vector<Bytes> messages_of(int size) {
  std::vector<Bytes> messages;
  for (int rank = 0; rank < size; ++rank) messages.push_back(topo::encode(on_host(rank)));
  return messages;
}

/// Path of a file for each rank; the files are removed with the object.
struct TemporaryPath {
  std::string text = fmt::format("/tmp/oriel-topology-test-{}", ::getpid());
  ~TemporaryPath() {
    std::error_code error;
    for (int rank = 0; rank < 8; ++rank) std::filesystem::remove(of(rank), error);
  }
  std::string of(int rank) const { return fmt::format("{}.{}", text, rank); }
  std::string read(int rank) const {
    std::ostringstream all;
    all << std::ifstream(of(rank)).rdbuf();
    return all.str();
  }
};

}  // namespace

TEST_CASE("one rank that keeps apart decides for all", "[req:5.13]") {
  for (const int asking : {-1, 0, 2}) {
    std::vector<Bytes> messages;
    for (int rank = 0; rank < 3; ++rank) {
      topo::RankInfo info = on_host(rank);
      info.kind = topo::DeviceKind::cuda;
      info.device = rank;
      info.uuid[0] = static_cast<std::byte>(rank + 1);
      info.keeps_apart = rank == asking;
      messages.push_back(topo::encode(info));
    }
    const auto made = comm::make_topology(messages, 8);
    REQUIRE(made.ok());
    CHECK(made->teams.members.size() == (asking < 0 ? 1 : 3));
  }
}

TEST_CASE("copy engines are for several GPU ranks of one team that all ask for them", "[req:5.9]") {
  struct Case {
    int ranks;
    int not_asking;  ///< rank that does not ask for copy engines; -1: all ask
    int apart;       ///< rank that wants its GPU apart; -1: none does
    bool may_use;
  };
  for (const Case& one : {Case{3, -1, -1, true}, Case{3, 0, -1, false}, Case{3, 2, -1, false},
                          Case{3, -1, 1, false}, Case{1, -1, -1, false}}) {
    std::vector<Bytes> messages;
    for (int rank = 0; rank < one.ranks; ++rank) {
      topo::RankInfo info = on_host(rank);
      info.kind = topo::DeviceKind::cuda;
      info.device = rank;
      info.uuid[0] = static_cast<std::byte>(rank + 1);
      info.wants_copy_engines = rank != one.not_asking;
      info.keeps_apart = rank == one.apart;
      messages.push_back(topo::encode(info));
    }
    const auto made = comm::make_topology(messages, 8);
    REQUIRE(made.ok());
    CHECK(made->may_use_copy_engines() == one.may_use);
  }
}

TEST_CASE("a rank that makes something else of it is named in everybody's error", "[req:2.6]") {
  constexpr int kSize = 7;
  constexpr int kOdd = 4;
  boot::SimNetwork network(kSize, {.latency = 10us}, 1);
  std::vector<int> all;
  for (int rank = 0; rank < kSize; ++rank) all.push_back(rank);
  std::vector<boot::Group> groups;
  for (int rank = 0; rank < kSize; ++rank) groups.emplace_back(network.transport(rank), all, rank);
  std::vector<Task<Status>> tasks;
  for (int rank = 0; rank < kSize; ++rank) {
    auto messages = messages_of(kSize);
    if (rank == kOdd) {
      topo::RankInfo other = on_host(2);
      other.numa = 1;  // farther from all others
      messages[2] = topo::encode(other);
    }
    auto made = comm::make_topology(messages, 8);
    REQUIRE(made.ok());
    std::vector<boot::AgreedField> fields = {made->agreed_field()};
    tasks.push_back(groups[static_cast<std::size_t>(rank)].agree(boot::Operation::topology,
                                                                 Status(), std::move(fields)));
  }
  const auto results = network.run(std::move(tasks));
  for (const auto& result : results) {
    REQUIRE(result);
    REQUIRE_FALSE(result->ok());
    const std::string text = result->error().to_string();
    INFO(text);
    CHECK(text.find("the teams and paths computed from what the ranks have sent") !=
          std::string::npos);
    CHECK(text.find(fmt::format("on rank {}", kOdd)) != std::string::npos);
  }
}

TEST_CASE("ranks that hold the same messages agree; a malformed one is named", "[req:2.6]") {
  auto messages = messages_of(5);
  const auto first = comm::make_topology(messages, 8);
  const auto second = comm::make_topology(messages, 8);
  REQUIRE(first.ok());
  CHECK(first->agreed_field().value == second->agreed_field().value);
  CHECK(first->summary() == "1 LSA team: 0-4; 10 pairs of ranks: 10 by host memory, 1 hop");
  messages[3].pop_back();
  const auto cut = comm::make_topology(messages, 8);
  REQUIRE_FALSE(cut.ok());
  CHECK(cut.error().origin_rank() == 3);
  messages[3].clear();  // this rank has failed, and reports that itself
  CHECK(comm::make_topology(messages, 8).ok());
}

TEST_CASE("a rank says by which path it reaches each other rank of its node", "[req:5.13]") {
  std::vector<Bytes> messages;
  for (int rank = 0; rank < 5; ++rank) {
    topo::RankInfo info = on_host(rank);
    info.numa = rank < 3 ? 0 : 1;
    info.node.host = rank < 4 ? 1 : 2;
    messages.push_back(topo::encode(info));
  }
  const auto topology = comm::make_topology(messages, 8);
  REQUIRE(topology.ok());
  CHECK(topology->reach_of(1) == "ranks 0, 2 by host memory, 1 hop; rank 3 by host memory, 2 hops");
  CHECK(topology->reach_of(4).empty());  // alone on its node
}

TEST_CASE("supplements are part of the topology agreement, and a malformed one names its rank",
          "[req:2.6]") {
  std::vector<Bytes> messages;
  for (int rank = 0; rank < 4; ++rank) {
    topo::RankInfo info = on_host(rank);
    info.node.host = rank < 2 ? 1 : 2;
    messages.push_back(topo::encode(info));
  }
  const auto first = comm::make_topology(messages, 8);
  REQUIRE(first.ok());
  CHECK(first->summary().ends_with("4 by network"));
  REQUIRE(first->paths.leave_questions());
  std::vector<Bytes> more;
  for (int rank = 0; rank < 4; ++rank) {
    const topo::Wanted wanted = first->paths.wanted_of(rank);
    CHECK(wanted == topo::Wanted{.network = true});
    topo::RankInfo info = on_host(rank);
    info.network_class = rank == 3 ? 7 : 9;
    more.push_back(topo::encode_supplement(info, wanted));
  }
  const auto whole = comm::complete_topology(*first, more, 8);
  REQUIRE(whole.ok());
  CHECK(whole->summary().ends_with("2 by network, from 256 Gbit/s; 2 by network, from 64 Gbit/s"));
  CHECK(whole->agreed_field().value != first->agreed_field().value);
  CHECK(whole->agreed_field().value ==
        comm::complete_topology(*first, more, 8)->agreed_field().value);
  more[2].push_back(std::byte{0});
  const auto padded = comm::complete_topology(*first, more, 8);
  REQUIRE_FALSE(padded.ok());
  CHECK(padded.error().origin_rank() == 2);
  more[2].clear();  // this rank has failed, and reports that itself
  CHECK(comm::complete_topology(*first, more, 8).ok());
}

TEST_CASE("files of network ports are read by ranks that need a network, and once", "[req:2.10]") {
  const TemporaryPath path;
  check_all_ok(run_ranks(LaunchMode::processes, 4, [&](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const topo::TemporaryTree tree;
    tree.file("/sys/devices/system/node/online", "0\n");
    topo::add_network(tree);
    std::vector<std::string> asked;
    std::mutex mutex;
    const topo::FileTree files(tree.root(), [&](std::string_view one) {
      const std::lock_guard lock(mutex);
      asked.emplace_back(one);
    });
    const auto about_network = [&] {
      const std::lock_guard lock(mutex);
      return topo::asked_about_network(asked);
    };
    topo::ProcessMachine machine({files});
    const topo::ScopedProcessMachine scoped(machine);
    const Environment logged(Variables{
        {"ORIEL_BACKEND", "host"}, {"ORIEL_LOG", "info"}, {"ORIEL_LOG_FILE", path.of(rank)}});
    {
      const Environment one(Variables{{"ORIEL_HOSTID", "one"}});
      const auto comm = join(test_ranks);
      require(!asked.empty() && about_network() == 0, "ports were read for one node");
    }
    test_ranks.barrier();
    std::size_t read = 0;
    for (int round = 0; round < 2; ++round) {
      const Environment two(Variables{{"ORIEL_HOSTID", rank < 2 ? "one" : "two"}});
      const auto comm = join(test_ranks);
      require(about_network() > 0, "no port was read");
      require(round == 0 || about_network() == read, "ports were read again");
      read = about_network();
      test_ranks.barrier();
    }
    const std::string text = path.read(rank);
    const bool says = text.find("4 by network, from 128 Gbit/s") != std::string::npos;
    require(says == (rank == 0), text);
  }));
}

TEST_CASE("a description that one rank cannot use ends the start of all with its reason",
          "[req:2.7]") {
  const TemporaryPath path;
  std::ofstream(path.of(0)) << "<system>\n<cpu numaid=\"0\"\n";
  check_all_ok(run_ranks(LaunchMode::processes, 3, [&](TestRanks& test_ranks) {
    const std::string file = test_ranks.first() == 1 ? path.of(0) : "";
    const Environment own(Variables{{"ORIEL_TOPO_FILE", file}});
    must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
              {"ORIEL_TOPO_FILE", "rank 1", "line", path.of(0)});
  }));
}

TEST_CASE("the machine is described by one rank of each node, once", "[req:2.7]") {
  const TemporaryPath path;
  check_all_ok(run_ranks(LaunchMode::processes, 4, [&](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const Environment own(Variables{{"ORIEL_TOPO_DUMP_FILE", path.of(rank)},
                                    {"ORIEL_HOSTID", rank % 2 == 0 ? "even" : "odd"}});
    for (int round = 0; round < 2; ++round) {
      const auto comm = join(test_ranks);
      test_ranks.barrier();
      const bool writes = rank < 2 && round == 0;
      require(std::filesystem::exists(path.of(rank)) == writes, "who has written");
      std::filesystem::remove(path.of(rank));
      test_ranks.barrier();
    }
  }));
}

TEST_CASE("a pipe that nobody writes to, or slowly, holds a start up for a part of its time",
          "[req:1.41][req:2.7]") {
  const bool has_writer = GENERATE(false, true);
  CAPTURE(has_writer);
  const TemporaryPath path;
  REQUIRE(::mkfifo(path.of(0).c_str(), 0600) == 0);
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    const bool reads = test_ranks.first() == 1;
    const OwnedFd writer(reads && has_writer ? ::open(path.of(0).c_str(), O_RDWR | O_CLOEXEC) : -1);
    const Environment own(
        Variables{{"ORIEL_TOPO_FILE", reads ? path.of(0) : ""}, {"ORIEL_TIMEOUT", "4s"}});
    const FairTimer timer;
    must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
              {"rank 1", "ORIEL_TOPO_FILE", path.of(0),
               has_writer ? "has not ended within 1000 ms" : "nobody has open to write"});
    require(timer.spent() < 4s, "it took too long");
  }));
}

TEST_CASE("a description that cannot be written is a warning, and the start goes on", "[req:2.7]") {
  const TemporaryPath path;
  check_all_ok(run_ranks(LaunchMode::processes, 1, [&](TestRanks& test_ranks) {
    const std::string nowhere = path.of(0) + "/none/machine.xml";
    const Environment own(Variables{
        {"ORIEL_TOPO_DUMP_FILE", nowhere}, {"ORIEL_LOG", "warn"}, {"ORIEL_LOG_FILE", path.of(1)}});
    static_cast<void>(join(test_ranks));
    require_words(path.read(1), {nowhere, "ENOENT", "WARN"});
  }));
}

}  // namespace oriel::test
