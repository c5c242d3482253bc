// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/rank_info.hpp"

#include <span>
#include <string>

#include <catch2/catch.hpp>

#include "support/words.hpp"

namespace oriel::topo {
namespace {

using test::has;

RankInfo example() {
  RankInfo info = host_rank_info(read_node_identity(""));
  info.kind = DeviceKind::cuda;
  info.device = 3;
  info.memory_bytes = std::uint64_t{141} << 30;
  info.pci_id = "0000:1b:00.0";
  info.uuid[4] = std::byte{9};
  info.numa = 1;
  info.links_class = 12;
  info.resident_ctas = 132;
  info.cta_limit = 16;
  info.cta_least = 4;
  info.known_sharers = 2;
  info.keeps_apart = true;
  info.wants_copy_engines = true;
  info.may_learn_more = true;
  info.host_class = 9;
  info.network_class = 7;
  info.fabric_handles = true;
  info.fabric = FabricClique{};
  info.fabric->clique = 7;
  DeviceUuid last = info.uuid;
  last[0] = std::byte{200};
  const PathFacts nvlink{PathKind::nvlink, 2, 12, true};
  info.seen = {SeenDevice{DeviceUuid{}, false, false, {PathKind::host_memory, 2, 8, false}},
               SeenDevice{info.uuid, true, true, {PathKind::same_device, 0, 0, true}},
               SeenDevice{last, true, true, nvlink}};
  return info;
}

}  // namespace

TEST_CASE("rank information is unchanged after it was encoded and decoded", "[req:1.14]") {
  const RankInfo gpu = example();
  CHECK(decode_rank_info(encode(gpu)).value() == gpu);
  const RankInfo host = host_rank_info(NodeIdentity{1, 2});
  CHECK(decode_rank_info(encode(host)).value() == host);
}

TEST_CASE("the fuzz target of rank information starts from messages of today", "[req:1.17]") {
  const auto message = [](const std::string& name) {
    const std::string text =
        test::text_of_file(ORIEL_TEST_SOURCE_DIR "/test/fuzz/corpus/rank_info/" + name);
    const auto bytes = std::as_bytes(std::span(text));
    return Bytes(bytes.begin(), bytes.end());
  };
  for (const char* const name : {"host", "gpu"}) {
    INFO(name);
    CHECK(decode_rank_info(message(name)).ok());
  }
  RankInfo info = example();
  CHECK(add_supplement(info, message("hidden"), {.hidden_gpus = true}).ok());
  CHECK(add_supplement(info, message("network"), {.network = true}).ok());
  info = example();
  CHECK(add_supplement(info, message("both"), {.hidden_gpus = true, .network = true}).ok());
}

TEST_CASE("supplements on request are added to a rank's information, or refused if malformed",
          "[req:2.6]") {
  RankInfo more = example();
  more.network_class = 9;
  more.seen.pop_back();
  RankInfo first = example();
  first.may_learn_more = true;
  for (const bool hidden : {false, true}) {
    for (const bool network : {false, true}) {
      const Wanted wanted{.hidden_gpus = hidden, .network = network};
      const Bytes message = encode_supplement(more, wanted);
      CHECK_FALSE(message.empty());
      RankInfo info = first;
      REQUIRE(add_supplement(info, message, wanted).ok());
      CHECK(info.network_class == (network ? 9 : 7));
      CHECK(info.seen == (hidden ? more.seen : first.seen));
      CHECK(info.may_learn_more == !hidden);
      for (std::size_t length = 0; length < message.size(); ++length) {
        RankInfo cut = first;
        CHECK_FALSE(add_supplement(cut, ByteView(message).first(length), wanted).ok());
      }
      Bytes padded = message;
      padded.push_back(std::byte{0});
      CHECK_FALSE(add_supplement(info, padded, wanted).ok());
      CHECK_FALSE(add_supplement(info, message, {.hidden_gpus = hidden, .network = !network}).ok());
    }
  }
  more.network_class = 40;
  CHECK_FALSE(
      add_supplement(first, encode_supplement(more, {.network = true}), {.network = true}).ok());
  more.seen.push_back(more.seen.front());  // lists one device twice
  CHECK_FALSE(
      add_supplement(first, encode_supplement(more, {.hidden_gpus = true}), {.hidden_gpus = true})
          .ok());
  RankInfo host = host_rank_info(NodeIdentity{1, 2});
  CHECK_FALSE(add_supplement(host, encode_supplement(example(), {.hidden_gpus = true}),
                             {.hidden_gpus = true})
                  .ok());
}

TEST_CASE("rank information that is cut, padded or nonsense is refused", "[req:1.14]") {
  const Bytes whole = encode(example());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO("length " << length);
    CHECK_FALSE(decode_rank_info(ByteView(whole).first(length)).ok());
  }
  Bytes padded = whole;
  padded.push_back(std::byte{0});
  CHECK_FALSE(decode_rank_info(padded).ok());
}

TEST_CASE("each field of a rank's information on devices, fabric and NUMA nodes is validated",
          "[req:2.3]") {
  const auto refused_with = [](const char* words, auto&& change) {
    RankInfo info = example();
    change(info);
    const auto decoded = decode_rank_info(encode(info));
    REQUIRE_FALSE(decoded.ok());
    INFO(decoded.error().message());
    CHECK(has(decoded.error().message(), words));
  };
  refused_with("process number is 0", [](RankInfo& info) { info.process = 0; });
  refused_with("no PCI id", [](RankInfo& info) { info.pci_id = "0000:1b:00.0\n"; });
  refused_with("no PCI id",
               [](RankInfo& info) { info.pci_id = std::string(kPciIdMostBytes + 1, '0'); });
  refused_with("a memory of", [](RankInfo& info) { info.memory_bytes = kMemoryMostBytes + 1; });
  refused_with("-2 is negative", [](RankInfo& info) { info.device = -2; });
  refused_with("names a device", [](RankInfo& info) { info.kind = DeviceKind::host; });
  refused_with("kind 7", [](RankInfo& info) { info.kind = static_cast<DeviceKind>(7); });
  refused_with("NUMA node -2", [](RankInfo& info) { info.numa = -2; });
  refused_with("NUMA node", [](RankInfo& info) { info.numa = kNumaNumberMost + 1; });
  refused_with("network of bandwidth class 32", [](RankInfo& info) { info.host_class = 32; });
  refused_with("network of bandwidth class 40", [](RankInfo& info) { info.network_class = 40; });
  refused_with("links of bandwidth class", [](RankInfo& info) { info.links_class = 32; });
  refused_with("CTAs for 1025", [](RankInfo& info) { info.resident_ctas = kCtasMost + 1; });
  refused_with("CTAs for 1026", [](RankInfo& info) { info.cta_limit = kCtasMost + 2; });
  refused_with("CTAs for 1027", [](RankInfo& info) { info.cta_least = kCtasMost + 3; });
  refused_with("order of their UUIDs", [](RankInfo& info) { info.seen[1].uuid = DeviceUuid{}; });
  refused_with("order of their UUIDs",
               [](RankInfo& info) { std::swap(info.seen[0], info.seen[1]); });
  refused_with("is of kind 4", [](RankInfo& info) { info.seen[2].path.kind = PathKind::network; });
  refused_with("a path of 65 hops", [](RankInfo& info) { info.seen[2].path.hops = 65; });
  refused_with("bandwidth class 32",
               [](RankInfo& info) { info.seen[2].path.bandwidth_class = 32; });
  refused_with("contradicts", [](RankInfo& info) { info.seen[0].reachable = true; });
  refused_with("contradicts", [](RankInfo& info) { info.seen[2].reachable = false; });
  refused_with("of another device",
               [](RankInfo& info) { info.seen[2].path.kind = PathKind::same_device; });
  refused_with("of another device", [](RankInfo& info) { info.uuid[15] = std::byte{1}; });
  for (int fact = 0; fact < 5; ++fact) {  // facts of a GPU that a rank on the host sends
    refused_with("names a device", [&](RankInfo& info) {
      info = host_rank_info(NodeIdentity{1, 2});
      info.fabric_handles = fact == 0;
      if (fact == 1) info.fabric = FabricClique{};
      info.links_class = fact == 2 ? 1 : 0;
      info.resident_ctas = fact == 3 ? 1 : 0;
      info.wants_copy_engines = fact == 4;
    });
  }

  RankInfo many = example();
  while (many.seen.size() < kSeenDevicesMost + 3) {
    SeenDevice next = many.seen.back();
    next.uuid[0] = static_cast<std::byte>(200 + many.seen.size() / 200);
    next.uuid[1] = static_cast<std::byte>(many.seen.size() % 200 + 1);
    many.seen.push_back(next);
  }
  const auto decoded = decode_rank_info(encode(many));
  REQUIRE(decoded.ok());
  CHECK(decoded->seen.size() == kSeenDevicesMost);
  CHECK(find_seen(*decoded, many.seen[100].uuid) != nullptr);
  CHECK(find_seen(*decoded, many.seen.back().uuid) == nullptr);
}

TEST_CASE("the message of another version is refused with the two numbers", "[req:2.3]") {
  Bytes message = encode(example());
  message[0] = std::byte{2};
  const auto decoded = decode_rank_info(message);
  REQUIRE_FALSE(decoded.ok());
  CHECK(has(decoded.error().message(), "format 2, this library knows 11"));
}

TEST_CASE("a pid means something inside one PID namespace of one node only", "[req:1.12]") {
  const RankInfo own = host_rank_info(read_node_identity(""));
  CHECK(own.pid_namespace != 0);
  CHECK(shares_pids(own, own));
  const auto shares = [&](auto change) {
    RankInfo other = own;
    change(other);
    return shares_pids(own, other);
  };
  CHECK(shares([](RankInfo& other) { ++other.pid; }));
  CHECK_FALSE(shares([](RankInfo& other) { ++other.pid_namespace; }));
  CHECK_FALSE(shares([](RankInfo& other) { ++other.machine; }));
  // The user split one machine into two nodes.
  REQUIRE(read_node_identity("a name") != own.node);
  CHECK(shares([](RankInfo& other) { other.node = read_node_identity("a name"); }));
  // If the boot ID is unknown, the node's identity identifies the machine.
  CHECK(shares([](RankInfo& other) { other.machine = 0; }));
  CHECK_FALSE(shares([](RankInfo& other) {
    other.machine = 0;
    ++other.node.host;
  }));
  RankInfo nowhere = own;  // unknown namespaces: sharing cannot be shown
  nowhere.pid_namespace = 0;
  CHECK_FALSE(shares_pids(own, nowhere));
  CHECK_FALSE(shares_pids(nowhere, nowhere));
}

TEST_CASE("a node's host hash changes with each fact of the host, and an override replaces them",
          "[req:1.14]") {
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
  CHECK(read_node_identity("node0").named);
  CHECK_FALSE(here.named);
}

}  // namespace oriel::topo
