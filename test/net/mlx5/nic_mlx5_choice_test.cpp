// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/mlx5_fixture.hpp"

// Choice of device, port, GID and sizes, and the texts of refusals (3.11, 3.12).

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

/// Returns the error text of opening the device. CHECKs that nothing is left.
std::string refusal(Mlx5Fixture& fixture) {
  auto device = fixture.open_device();
  REQUIRE_FALSE(device.ok());
  CHECK(fixture.verbs.live() == 0);
  CHECK(fixture.verbs.violations.empty());
  return device.error().to_string();
}
/// Checks that each change makes opening fail with its text.
void check_refusals(const std::vector<std::pair<void (*)(Mlx5Fixture&), const char*>>& all) {
  for (const auto& [change, says] : all) {
    Mlx5Fixture fixture;
    change(fixture);
    const std::string text = refusal(fixture);
    INFO(text);
    CHECK(text.find(says) != std::string::npos);
  }
}
int chosen(Mlx5Fixture& fixture, std::vector<VerbsGid> gids) {
  fixture.adapter().link_layer = 2;
  fixture.adapter().gids = std::move(gids);
  auto device = fixture.open_device();
  return device.ok() ? device.value()->port().gid_index() : -1;
}

}  // namespace

TEST_CASE("without the libraries the error names their packages", "[req:3.11]") {
  const auto change = [](Mlx5Fixture& fixture) {
    fixture.verbs.library.missing = "libibverbs.so.1 cannot be loaded";
  };
  check_refusals({{change, "mlx5_0"},
                  {change, "libibverbs.so.1 cannot be loaded"},
                  {change, "ibverbs-providers"}});
  Mlx5Fixture fixture;
  change(fixture);
  refusal(fixture);
  CHECK(fixture.verbs.calls.empty());
}

TEST_CASE("a device that is not there, or not of the family, is named", "[req:3.11]") {
  check_refusals(
      {{[](Mlx5Fixture& fixture) {
          fixture.verbs.adapters.push_back(FakeVerbs::adapter("mlx5_bond_0"));
          fixture.options.device.name = "mlx5_3";
        },
        "no RDMA adapter mlx5_3; there is mlx5_0, mlx5_bond_0"},
       {[](Mlx5Fixture& fixture) { fixture.verbs.adapters.clear(); }, "there is none"},
       {[](Mlx5Fixture& fixture) { fixture.adapter().mlx5 = false; }, "no mlx5 adapter"}});
  Mlx5Fixture two;
  two.verbs.adapters.push_back(FakeVerbs::adapter("mlx5_1"));
  two.verbs.adapters[1].lid = 99;
  two.options.device.name = "mlx5_1";
  CHECK(two.open_device().value()->port().lid() == 99);
}

TEST_CASE("a port in the wrong state is refused with its state", "[req:3.11]") {
  check_refusals({
      {[](Mlx5Fixture& fixture) { fixture.adapter().port_state = 1; },
       "mlx5_0 port 1 cannot be used: the port is down"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().port_state = 2; }, "subnet manager"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().port_state = 77; }, "unknown"},
      {[](Mlx5Fixture& fixture) { fixture.options.device.port = 2; },
       "mlx5_0 port 2: ibv_query_port"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().link_layer = 0; }, "link layer"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().mtu = 6; }, "MTU"},
  });
}

TEST_CASE("an adapter that lacks what queues need is refused", "[req:3.11]") {
  check_refusals({
      {[](Mlx5Fixture& fixture) { fixture.adapter().general[0x220 / 8] = std::byte{0}; },
       "overrun"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().general[0x23f / 8] = std::byte{0}; },
       "connections"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().general[0x1fc / 8] = std::byte{0}; },
       "version 0"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().general[0x21e / 8] = std::byte{0}; },
       "no atomics"},
      {[](Mlx5Fixture& fixture) { fixture.adapter().atomic[0x40 / 8] = std::byte{0}; },
       "big-endian"},
  });
}

TEST_CASE("on Ethernet the best GID is taken: RoCE v2 of IPv4, of IPv6, link-local, then v1",
          "[req:3.11]") {
  const VerbsGid v1 = FakeVerbs::gid({0xfe, 0x80}, {1}, 1);
  const VerbsGid local = FakeVerbs::gid({0xfe, 0x80}, {1}, 2);
  const VerbsGid ipv6 = FakeVerbs::gid({0x20, 0x01}, {1}, 2);
  const VerbsGid ipv4 = FakeVerbs::gid({0}, {0xff, 0xff, 10, 0, 0, 1}, 2);
  const VerbsGid zero = FakeVerbs::gid({0}, {0}, 2);
  const VerbsGid empty = FakeVerbs::gid({0}, {0}, 99);
  Mlx5Fixture fixture;
  CHECK(chosen(fixture, {v1, local, ipv6, ipv4}) == 3);
  CHECK(chosen(fixture, {ipv4, local, ipv6, ipv4}) == 0);
  CHECK(chosen(fixture, {v1, local, ipv6}) == 2);
  CHECK(chosen(fixture, {v1, empty, local}) == 2);
  CHECK(chosen(fixture, {empty, zero, v1}) == 2);
  CHECK(chosen(fixture, {empty, zero}) == -1);
  CHECK(chosen(fixture, {}) == -1);
  // The user's choice takes precedence. If this entry is unusable, opening fails.
  fixture.options.device.gid_index = 1;
  CHECK(chosen(fixture, {v1, local, ipv6, ipv4}) == 1);
  CHECK(chosen(fixture, {v1, zero}) == -1);
  CHECK(chosen(fixture, {v1, empty}) == -1);
  fixture.options.device.gid_index = 9;
  CHECK(chosen(fixture, {v1, local}) == -1);
}

TEST_CASE("capabilities are read from where they stand", "[req:3.11]") {
  Mlx5Fixture fixture;
  const auto device = fixture.open_device().value();
  CHECK(device->capabilities().log_qp_size_most == 15);
  CHECK(device->capabilities().log_cq_size_most == 22);
  CHECK(device->capabilities().log_message_most == 30);
  CHECK(device->capabilities().log_reads_sent_most == 4);
  CHECK(device->capabilities().log_reads_answered_most == 4);
  CHECK(device->capabilities().atomic_operations == 15);
  CHECK(device->capabilities().atomic_sizes == 12);
  CHECK(device->event_queue() == 0x2b);
}

TEST_CASE("queues of a wrong size, and peers of another network, are refused before any call",
          "[req:3.23]") {
  Mlx5Fixture fixture;
  fixture.adapter().general[0x88 / 8] = std::byte{10};
  const auto device = fixture.open_device().value();
  Mlx5HostMemory memory;
  Mlx5Doorbells doorbells(device);
  fixture.verbs.calls.clear();
  const auto refuses = [&](auto change) {
    Mlx5Queue::Options options;
    change(options);
    const auto made = Mlx5Queue::create(device, memory, doorbells, options);
    return !made.ok() && made.error().code() == ErrorCode::invalid_argument;
  };
  CHECK(refuses([](auto& options) { options.depth = 64; }));
  CHECK(refuses([](auto& options) { options.depth = 1000; }));
  CHECK(refuses([](auto& options) { options.depth = 2048; }));  // more than this adapter supports
  CHECK(refuses([](auto& options) { options.fetch_slots = 3; }));
  CHECK(refuses([](auto& options) { options.fetch_slots = 2048; }));
  CHECK(refuses([](auto& options) { options.psn = 0x1000000; }));
  CHECK(fixture.verbs.calls.empty());

  Mlx5Queue queue = Mlx5Queue::create(device, memory, doorbells, {}).value();
  fixture.verbs.calls.clear();
  Mlx5QueueHandle peer = queue.handle();
  peer.link_layer = LinkLayer::ethernet;
  CHECK(queue.connect(peer).error().code() == ErrorCode::invalid_usage);
  peer = queue.handle();
  peer.roce_version = 1;
  CHECK(queue.connect(peer).error().code() == ErrorCode::invalid_usage);
  CHECK(fixture.verbs.calls.empty());

  NicMlx5::Options options;
  options.device = fixture.options.device;
  NicMlx5 nic = NicMlx5::open(options).value();
  CHECK_FALSE(nic.register_memory(memory, &fixture, 0, 1).ok());
  CHECK_FALSE(nic.register_memory(memory, &fixture, ~std::size_t{0}, 1).ok());
}
