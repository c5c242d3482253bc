// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/rank_info.hpp"

#include <random>

#include <catch2/catch.hpp>

namespace oriel::topo {
namespace {

RankInfo example() {
  RankInfo info = host_rank_info(read_node_identity(""));
  info.kind = DeviceKind::cuda;
  info.device = 3;
  info.memory_bytes = std::uint64_t{141} << 30;
  info.pci_id = "0000:1b:00.0";
  info.uuid[4] = std::byte{9};
  info.seen = {SeenDevice{info.uuid, true}, SeenDevice{DeviceUuid{}, false}};
  return info;
}

bool refused(const RankInfo& info) {
  return !decode_rank_info(encode(info)).ok();
}

}  // namespace

TEST_CASE("1.14 rank information survives the wire") {
  const RankInfo gpu = example();
  CHECK(decode_rank_info(encode(gpu)).value() == gpu);
  const RankInfo host = host_rank_info(NodeIdentity{1, 2});
  CHECK(decode_rank_info(encode(host)).value() == host);
}

TEST_CASE("1.14 rank information that is cut, padded or nonsense is refused") {
  const Bytes whole = encode(example());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO("length " << length);
    CHECK_FALSE(decode_rank_info(ByteView(whole).first(length)).ok());
  }
  Bytes padded = whole;
  padded.push_back(std::byte{0});
  CHECK_FALSE(decode_rank_info(padded).ok());

  RankInfo info = example();
  info.process = 0;
  CHECK(refused(info));
  info = example();
  info.pci_id = "0000:1b:00.0\n";
  CHECK(refused(info));
  info.pci_id = std::string(kPciIdMostBytes + 1, '0');
  CHECK(refused(info));
  info = example();
  info.memory_bytes = kMemoryMostBytes + 1;
  CHECK(refused(info));
  info = example();
  info.device = -2;
  CHECK(refused(info));
  info = example();
  info.kind = DeviceKind::host;
  CHECK(refused(info));
  info.kind = static_cast<DeviceKind>(7);
  CHECK(refused(info));
}

TEST_CASE("1.14 random bytes never pass for more than they hold") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const Bytes whole = encode(example());
  for (int round = 0; round < 20'000; ++round) {
    Bytes message = whole;
    for (int flips = 0; flips < 3; ++flips) {
      message[random() % message.size()] = static_cast<std::byte>(random());
    }
    const auto decoded = decode_rank_info(message);
    // What is accepted means exactly what was sent.
    if (decoded.ok()) CHECK(encode(decoded.value()) == message);
  }
}

TEST_CASE("1.12 a pid means something inside one PID namespace of one node only") {
  const RankInfo own = host_rank_info(read_node_identity(""));
  CHECK(own.pid_namespace != 0);
  CHECK(shares_pids(own, own));
  RankInfo other = own;
  other.pid = own.pid + 1;
  CHECK(shares_pids(own, other));
  other.pid_namespace = own.pid_namespace + 1;
  CHECK_FALSE(shares_pids(own, other));
  other = own;
  other.node.host = own.node.host + 1;
  CHECK_FALSE(shares_pids(own, other));
  // Two ranks that cannot tell their namespaces.
  other = own;
  other.pid_namespace = 0;
  CHECK_FALSE(shares_pids(own, other));
  CHECK_FALSE(shares_pids(other, other));
}

TEST_CASE("1.14 the node identity follows host, boot and override") {
  const HostFacts facts{"a", "b", "c"};
  const auto plain = host_hash(facts, "");
  CHECK(plain == host_hash(facts, ""));
  CHECK(plain != host_hash(HostFacts{"x", "b", "c"}, ""));
  CHECK(plain != host_hash(HostFacts{"a", "x", "c"}, ""));
  CHECK(plain != host_hash(HostFacts{"a", "b", "x"}, ""));
  CHECK(plain != host_hash(HostFacts{"ab", "", "c"}, ""));
  CHECK(host_hash(facts, "node0") == host_hash(HostFacts{}, "node0"));
  CHECK(host_hash(facts, "node0") != host_hash(facts, "node1"));

  const NodeIdentity here = read_node_identity("");
  CHECK(here == read_node_identity(""));
  CHECK(here.network_namespace != 0);
  CHECK(read_node_identity("node0").host != here.host);
  CHECK(read_node_identity("node0").network_namespace == here.network_namespace);
}

}  // namespace oriel::topo
