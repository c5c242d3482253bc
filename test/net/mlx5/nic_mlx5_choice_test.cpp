// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/mlx5_scene.hpp"

// Choice of device, port, GID and sizes, and the texts of refusals (3.11, 3.12).

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

/// Returns the error text of opening the device. CHECKs that nothing is left.
std::string refusal(Scene& scene) {
  auto device = scene.open_device();
  REQUIRE_FALSE(device.ok());
  CHECK(scene.verbs.live() == 0);
  CHECK(scene.verbs.violations.empty());
  return device.error().to_string();
}
/// Checks that each change makes opening fail with its text.
void check_refusals(const std::vector<std::pair<void (*)(Scene&), const char*>>& all) {
  for (const auto& [change, says] : all) {
    Scene scene;
    change(scene);
    const std::string text = refusal(scene);
    INFO(text);
    CHECK(text.find(says) != std::string::npos);
  }
}
int chosen(Scene& scene, std::vector<VerbsGid> gids) {
  scene.adapter().link_layer = 2;
  scene.adapter().gids = std::move(gids);
  auto device = scene.open_device();
  return device.ok() ? device.value()->port().gid_index() : -1;
}

}  // namespace

TEST_CASE("without the libraries the error names their packages", "[req:3.11]") {
  const auto change = [](Scene& scene) {
    scene.verbs.library.missing = "libibverbs.so.1 cannot be loaded";
  };
  check_refusals({{change, "mlx5_0"},
                  {change, "libibverbs.so.1 cannot be loaded"},
                  {change, "ibverbs-providers"}});
  Scene scene;
  change(scene);
  refusal(scene);
  CHECK(scene.verbs.calls.empty());
}

TEST_CASE("a device that is not there, or not of the family, is named", "[req:3.11]") {
  check_refusals({{[](Scene& scene) {
                     scene.verbs.adapters.push_back(FakeVerbs::adapter("mlx5_bond_0"));
                     scene.options.device.name = "mlx5_3";
                   },
                   "no RDMA adapter mlx5_3; there is mlx5_0, mlx5_bond_0"},
                  {[](Scene& scene) { scene.verbs.adapters.clear(); }, "there is none"},
                  {[](Scene& scene) { scene.adapter().mlx5 = false; }, "no mlx5 adapter"}});
  Scene two;
  two.verbs.adapters.push_back(FakeVerbs::adapter("mlx5_1"));
  two.verbs.adapters[1].lid = 99;
  two.options.device.name = "mlx5_1";
  CHECK(two.open_device().value()->port().lid() == 99);
}

TEST_CASE("a port in the wrong state is refused with its state", "[req:3.11]") {
  check_refusals({
      {[](Scene& scene) { scene.adapter().port_state = 1; },
       "mlx5_0 port 1 cannot be used: the port is down"},
      {[](Scene& scene) { scene.adapter().port_state = 2; }, "subnet manager"},
      {[](Scene& scene) { scene.adapter().port_state = 77; }, "unknown"},
      {[](Scene& scene) { scene.options.device.port = 2; }, "mlx5_0 port 2: ibv_query_port"},
      {[](Scene& scene) { scene.adapter().link_layer = 0; }, "link layer"},
      {[](Scene& scene) { scene.adapter().mtu = 6; }, "MTU"},
  });
}

TEST_CASE("an adapter that lacks what queues need is refused", "[req:3.11]") {
  check_refusals({
      {[](Scene& scene) { scene.adapter().general[0x220 / 8] = std::byte{0}; }, "overrun"},
      {[](Scene& scene) { scene.adapter().general[0x23f / 8] = std::byte{0}; }, "connections"},
      {[](Scene& scene) { scene.adapter().general[0x1fc / 8] = std::byte{0}; }, "version 0"},
      {[](Scene& scene) { scene.adapter().general[0x21e / 8] = std::byte{0}; }, "no atomics"},
      {[](Scene& scene) { scene.adapter().atomic[0x40 / 8] = std::byte{0}; }, "big-endian"},
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
  Scene scene;
  CHECK(chosen(scene, {v1, local, ipv6, ipv4}) == 3);
  CHECK(chosen(scene, {ipv4, local, ipv6, ipv4}) == 0);
  CHECK(chosen(scene, {v1, local, ipv6}) == 2);
  CHECK(chosen(scene, {v1, empty, local}) == 2);
  CHECK(chosen(scene, {empty, zero, v1}) == 2);
  CHECK(chosen(scene, {empty, zero}) == -1);
  CHECK(chosen(scene, {}) == -1);
  // The user's choice takes precedence. If this entry is unusable, opening fails.
  scene.options.device.gid_index = 1;
  CHECK(chosen(scene, {v1, local, ipv6, ipv4}) == 1);
  CHECK(chosen(scene, {v1, zero}) == -1);
  CHECK(chosen(scene, {v1, empty}) == -1);
  scene.options.device.gid_index = 9;
  CHECK(chosen(scene, {v1, local}) == -1);
}

TEST_CASE("capabilities are read from where they stand", "[req:3.11]") {
  Scene scene;
  const auto device = scene.open_device().value();
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
  Scene scene;
  scene.adapter().general[0x88 / 8] = std::byte{10};
  const auto device = scene.open_device().value();
  Mlx5HostMemory memory;
  Mlx5Doorbells doorbells(device);
  scene.verbs.calls.clear();
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
  CHECK(scene.verbs.calls.empty());

  Mlx5Queue queue = Mlx5Queue::create(device, memory, doorbells, {}).value();
  scene.verbs.calls.clear();
  Mlx5QueueHandle peer = queue.handle();
  peer.link_layer = LinkLayer::ethernet;
  CHECK(queue.connect(peer).error().code() == ErrorCode::invalid_usage);
  peer = queue.handle();
  peer.roce_version = 1;
  CHECK(queue.connect(peer).error().code() == ErrorCode::invalid_usage);
  CHECK(scene.verbs.calls.empty());

  NicMlx5::Options options;
  options.device = scene.options.device;
  NicMlx5 nic = NicMlx5::open(options).value();
  CHECK_FALSE(nic.register_memory(memory, &scene, 0, 1).ok());
  CHECK_FALSE(nic.register_memory(memory, &scene, ~std::size_t{0}, 1).ok());
}
