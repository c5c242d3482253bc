// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/nic_mlx5.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/mlx5_fixture.hpp"
#include "net/queue/memory_keys.hpp"

// Host half of the queues of mlx5 adapters, against a recording table of verbs and DevX calls
// (3.11, 3.12). Not tested on an adapter.

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

namespace dq = device::queue;
using Names = std::vector<std::string>;

Mlx5QueueHandle peer_of(const Mlx5Queue& queue) {
  Mlx5QueueHandle peer = queue.handle();
  peer.number = 0x654321;
  peer.psn = 0x0a0b0c;
  if (peer.link_layer == LinkLayer::infiniband) peer.lid = 0x1234;
  return peer;
}

std::uint64_t address_of(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

const Names kReleases = {
    "ibv_close_device",       "ibv_dealloc_pd",       "ibv_dereg_mr", "ibv_destroy_ah",
    "mlx5dv_devx_umem_dereg", "mlx5dv_devx_free_uar", "DESTROY_CQ",   "DESTROY_QP"};
const Names kCommands = {"QUERY_HCA_CAP", "CREATE_CQ",  "CREATE_QP", "RST2INIT_QP",
                         "INIT2RTR_QP",   "RTR2RTS_QP", "2ERR_QP"};

bool is_one_of(const std::string& name, const Names& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Opens a NIC, creates and connects a queue, registers memory, and frees everything.
Status whole_life(Mlx5Fixture& fixture) {
  auto nic = fixture.open();
  if (!nic.ok()) return std::move(nic).error();
  auto queues = fixture.create(nic.value(), 1, {.receives = fixture.receives});
  if (!queues.ok()) return std::move(queues).error();
  Mlx5Queue& queue = queues.value()[0];
  auto region = nic->register_memory(fixture.memory, fixture.window.data(), sizeof fixture.window,
                                     kRemoteWrite | kLocalWrite);
  if (!region.ok()) return std::move(region).error();
  Status connected = queue.connect(peer_of(queue));
  if (!connected.ok()) return connected;
  return queue.to_error();
}

void check_nothing_left(const Mlx5Fixture& fixture) {
  CHECK(fixture.verbs.live() == 0);
  CHECK(fixture.verbs.violations == Names{});
  // Objects were freed in reverse order of creation, except addresses, which live for one step.
  Names made = fixture.verbs.made;
  Names destroyed = fixture.verbs.destroyed;
  std::erase(made, "address");
  std::erase(destroyed, "address");
  std::reverse(made.begin(), made.end());
  CHECK(made == destroyed);
}

}  // namespace

TEST_CASE("opening an mlx5 NIC and its queues makes the expected verbs calls in order",
          "[req:3.12]") {
  Mlx5Fixture fixture;
  auto nic = fixture.open();
  REQUIRE(nic.ok());
  CHECK(fixture.verbs.names() == Names{"ibv_get_device_list", "mlx5dv_open_device",
                                       "ibv_query_port", "_ibv_query_gid_ex", "QUERY_HCA_CAP",
                                       "QUERY_HCA_CAP", "mlx5dv_devx_query_eqn", "ibv_alloc_pd",
                                       "mlx5dv_init_obj"});
  CHECK(fixture.verbs.calls[1].arguments[0] == 1);  // opened with DevX
  CHECK(fixture.verbs.calls[8].arguments[0] == 1 << 6);
  fixture.verbs.calls.clear();

  auto queues = fixture.create(nic.value(), 1);
  REQUIRE(queues.ok());
  CHECK(fixture.verbs.names() == Names{"ibv_reg_mr", "mlx5dv_devx_umem_reg", "mlx5dv_devx_umem_reg",
                                       "mlx5dv_devx_alloc_uar", "CREATE_CQ", "CREATE_QP"});
  const Mlx5Queue& queue = queues.value()[0];
  const dq::QueueView& view = queue.view();
  const auto& pair = fixture.verbs.queue_pairs.at(queue.number());
  using Arguments = std::vector<std::uint64_t>;
  CHECK(fixture.verbs.calls[0].arguments == Arguments{address_of(view.fetch_values), 4096, 1});
  CHECK(fixture.verbs.calls[1].arguments == Arguments{address_of(view.ring), 8192, 1});
  CHECK(fixture.verbs.calls[2].arguments == Arguments{address_of(view.completion), 12288, 1});
  CHECK(fixture.verbs.calls[3].arguments == Arguments{1});

  // Both doorbell records lie behind the 8192 bytes of completions, apart from each other.
  const Bytes& cq_command = fixture.verbs.calls[4].command;
  const Bytes& qp_command = fixture.verbs.calls[5].command;
  CHECK(mlx5::get(cq_command, {72 * 8, 64}) == 8192 + 64);
  CHECK(mlx5::get(qp_command, {184 * 8, 64}) == 8192);

  // The adapter's queue pair, as the commands describe it, agrees with the view.
  CHECK(address_of(pair.ring) == address_of(view.ring));
  CHECK(pair.depth == view.depth);
  CHECK(pair.record + 1 == view.doorbell_record);
  CHECK(address_of(pair.completions) == address_of(view.completion));
  CHECK(pair.doorbell == view.doorbell);
  CHECK(view.number == pair.number);
  CHECK(view.nic_error == nullptr);
  CHECK(view.completion->tail == ~std::uint64_t{0});
  CHECK(view.fetch_turns[15] == 15);
  CHECK_FALSE(queue.is_rung_by_processor());
  CHECK(pair.state == 0);
}

TEST_CASE("a queue with receives has a ring of them, and a completion queue for them",
          "[B4][req:3.12]") {
  Mlx5Fixture fixture;
  NicMlx5 nic = fixture.open().value();
  fixture.verbs.calls.clear();
  Mlx5Queue::Options options;
  options.receives = 8;
  std::vector<Mlx5Queue> queues = fixture.create(nic, 1, options).value();
  CHECK(fixture.verbs.names() == Names{"ibv_reg_mr", "mlx5dv_devx_umem_reg", "mlx5dv_devx_umem_reg",
                                       "mlx5dv_devx_umem_reg", "mlx5dv_devx_alloc_uar", "CREATE_CQ",
                                       "CREATE_CQ", "CREATE_QP"});
  const dq::QueueView& view = queues[0].view();
  const dq::ReceiveView& receives = queues[0].receives();
  const auto& pair = fixture.verbs.queue_pairs.at(queues[0].number());
  using Arguments = std::vector<std::uint64_t>;
  // 8 receives of 16 bytes precede the 8192 bytes of WQEBBs.
  CHECK(fixture.verbs.calls[1].arguments == Arguments{address_of(view.ring) - 128, 12288, 1});
  CHECK(fixture.verbs.calls[3].arguments == Arguments{address_of(receives.completions), 4096, 1});
  // Three records, apart from each other: the queue's, and one for each CQ.
  CHECK(mlx5::get(fixture.verbs.calls[5].command, {72 * 8, 64}) == 8192 + 64);
  CHECK(mlx5::get(fixture.verbs.calls[6].command, {72 * 8, 64}) == 8192 + 128);
  CHECK(mlx5::get(fixture.verbs.calls[7].command, {184 * 8, 64}) == 8192);
  CHECK(fixture.verbs.calls[6].command[28] == std::byte{3});  // 2^3 CQEs
  CHECK(address_of(pair.ring) == address_of(view.ring));
  CHECK(address_of(pair.receives) + 128 == address_of(view.ring));
  CHECK(pair.receive_count == 8);
  CHECK(address_of(pair.received) == address_of(receives.completions));
  CHECK(pair.received_elements == receives.count);
  CHECK(pair.record == receives.record);
  CHECK(pair.record + 1 == view.doorbell_record);
  CHECK(receives.completions[7].tail == ~std::uint64_t{0});
  CHECK(receives.position->taken == 0);
  CHECK(receives.position->posted == 8);
  CHECK(fixture.verbs.violations.empty());
  for (const std::uint32_t wrong : {1u, 2u, 12u, 65536u}) {
    options.receives = wrong;
    CHECK_FALSE(fixture.create(nic, 1, options).ok());
  }
}

TEST_CASE("receives are announced to the adapter between RST2INIT and INIT2RTR", "[B4][req:3.12]") {
  Mlx5Fixture fixture;
  NicMlx5 nic = fixture.open().value();
  std::vector<Mlx5Queue> queues = fixture.create(nic, 1, {.receives = 16}).value();
  const std::uint32_t* const record = queues[0].receives().record;
  using Reported = std::vector<std::pair<std::string, std::uint32_t>>;
  Reported reported;
  fixture.verbs.spoil = [&](const std::string& call, Bytes&) {
    reported.emplace_back(call, dq::big_endian(*record));
  };
  REQUIRE(queues[0].connect(peer_of(queues[0])).ok());
  CHECK(reported == Reported{{"RST2INIT_QP", 0}, {"INIT2RTR_QP", 16}, {"RTR2RTS_QP", 16}});
}

TEST_CASE("a queue is connected over InfiniBand by its three steps", "[req:3.12][A5]") {
  Mlx5Fixture fixture;
  NicMlx5 nic = fixture.open().value();
  Mlx5Queue queue = std::move(fixture.create(nic, 1).value()[0]);
  const std::uint32_t number = queue.number();
  fixture.verbs.calls.clear();
  REQUIRE(queue.connect(peer_of(queue)).ok());
  CHECK(fixture.verbs.names() == Names{"RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP"});
  CHECK(fixture.verbs.calls[0].command == mlx5::reset_to_init(number, 1, 0));
  const FakeVerbs::QueuePair& pair = fixture.verbs.queue_pairs.at(number);
  CHECK(pair.remote == 0x654321);
  CHECK(pair.remote_lid == 0x1234);
  CHECK(pair.state == 3);
  CHECK(fixture.verbs.violations == Names{});
}

TEST_CASE("MTU, reads and global route of an mlx5 connection follow from the port and the peer",
          "[req:3.12]") {
  struct Case {
    std::uint8_t port_flags;
    void (*change)(Mlx5QueueHandle& peer);
    std::uint8_t mtu, reads;
    bool global_route;
  };
  constexpr std::uint8_t kMtu = 5, kReads = 4;  // the adapter's own limits
  for (const Case& at :
       {Case{0, [](Mlx5QueueHandle&) {}, kMtu, kReads, false},
        Case{0, [](Mlx5QueueHandle& peer) { peer.mtu = 3; }, 3, kReads, false},
        Case{0, [](Mlx5QueueHandle& peer) { peer.log_reads_answered = 2; }, kMtu, 2, false},
        Case{0, [](Mlx5QueueHandle& peer) { peer.log_reads_answered = 7; }, kMtu, kReads, false},
        // Needs a global route: a peer in another subnet, or a port that always requires it.
        Case{0, [](Mlx5QueueHandle& peer) { peer.gid[7] ^= 1; }, kMtu, kReads, true},
        Case{1, [](Mlx5QueueHandle&) {}, kMtu, kReads, true}}) {
    Mlx5Fixture fixture;
    fixture.adapter().port_flags = at.port_flags;
    NicMlx5 nic = fixture.open().value();
    Mlx5Queue queue = std::move(fixture.create(nic, 1).value()[0]);
    Mlx5QueueHandle peer = peer_of(queue);
    at.change(peer);
    REQUIRE(queue.connect(peer).ok());
    const Bytes& receive = fixture.verbs.find("INIT2RTR_QP")->command;
    CHECK(receive[32] == static_cast<std::byte>(at.mtu << 5 | 30));
    CHECK((receive[53] & std::byte{0x80}) == (at.global_route ? std::byte{0x80} : std::byte{0}));
    CHECK(fixture.verbs.find("RTR2RTS_QP")->command[137] ==
          static_cast<std::byte>(at.reads << 5 | 7));
    CHECK(fixture.verbs.violations == Names{});
  }
}

TEST_CASE("over Ethernet the kernel is asked for the peer's link address first", "[req:3.12]") {
  Mlx5Fixture fixture;
  fixture.use_ethernet();
  NicMlx5 nic = fixture.open().value();
  CHECK(nic.device().port().gid_index() == 2);
  CHECK(nic.device().port().roce_version() == 2);
  std::vector<Mlx5Queue> queues = fixture.create(nic, 1).value();
  fixture.verbs.calls.clear();
  REQUIRE(queues[0].connect(peer_of(queues[0])).ok());
  CHECK(fixture.verbs.names() == Names{"ibv_create_ah", "mlx5dv_init_obj", "ibv_destroy_ah",
                                       "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP"});
  CHECK(fixture.verbs.calls[0].arguments == std::vector<std::uint64_t>{2, 255, 1, 1});
  const Bytes& receive = fixture.verbs.calls[4].command;
  for (std::size_t i = 0; i < 6; ++i) CHECK(receive[86 + i] == static_cast<std::byte>(0x10 + i));
  CHECK(receive[57] == std::byte{2});     // own GID index
  CHECK(receive[79] == std::byte{1});     // last byte of the peer's GID
  CHECK(receive[82] >= std::byte{0xc0});  // a UDP port of RoCE v2
}

TEST_CASE("all objects are destroyed in reverse order, also by a queue that outlives its NIC",
          "[B4][req:3.12]") {
  Mlx5Fixture fixture;
  fixture.receives = GENERATE(0u, 4u);
  REQUIRE(whole_life(fixture).ok());
  check_nothing_left(fixture);
  {
    std::vector<Mlx5Queue> queues;
    {
      NicMlx5 nic = fixture.open().value();
      queues = fixture.create(nic, 2).value();
    }
    CHECK(queues[1].connect(peer_of(queues[1])).ok());
    Mlx5Queue moved = std::move(queues[0]);
    moved = std::move(queues[1]);
  }
  CHECK(fixture.verbs.live() == 0);
  CHECK(fixture.verbs.violations == Names{});
}

TEST_CASE("any failed verbs call of an mlx5 NIC is undone and named in the error",
          "[req:3.12][B4]") {
  const bool ethernet = GENERATE(false, true);
  const std::uint32_t receives = GENERATE(0u, 8u);
  long calls = 0;
  {
    Mlx5Fixture fixture;
    fixture.receives = receives;
    if (ethernet) fixture.use_ethernet();
    REQUIRE(whole_life(fixture).ok());
    calls = fixture.verbs.counted;
  }
  REQUIRE(calls > 25);
  for (long k = 1; k <= calls; ++k) {
    Mlx5Fixture fixture;
    fixture.receives = receives;
    if (ethernet) fixture.use_ethernet();
    fixture.verbs.fail_at = k;
    fixture.verbs.status = EREMOTEIO;
    const Status status = whole_life(fixture);
    const std::string& failed = fixture.verbs.failed;
    INFO("call " << k << " of " << calls << ": " << failed);
    REQUIRE_FALSE(failed.empty());
    check_nothing_left(fixture);
    const bool releases = is_one_of(failed, kReleases);
    // If no uncached register can be allocated, another kind is used.
    if (releases || failed == "mlx5dv_devx_alloc_uar") {
      CHECK(status.ok());
      continue;
    }
    REQUIRE_FALSE(status.ok());
    const std::string text = status.error().to_string();
    INFO(text);
    CHECK(text.find("mlx5_0 port 1") != std::string::npos);
    CHECK(text.find(failed.substr(failed[0] == '_' ? 1 : 0)) != std::string::npos);
    CHECK(status.error().native().domain == NativeDomain::os_errno);
    CHECK(status.error().native().value == EREMOTEIO);
    CHECK_FALSE(status.error().hint().empty());
    if (is_one_of(failed, kCommands)) {
      CHECK(text.find("status 0x03") != std::string::npos);
      CHECK(text.find("syndrome 0x00c0ffee") != std::string::npos);
    }
  }
}

TEST_CASE("answers that cannot be are refused, and nothing is left", "[req:3.12]") {
  struct Spoiled {
    const char* call;
    std::function<void(Bytes&)> change;
    const char* says;
    int nth = 1;  ///< first call that is changed
  };
  const auto zero = [](Bytes& out) { std::fill(out.begin(), out.end(), std::byte{0}); };
  const auto refuse = [](Bytes& out) { out[0] = std::byte{0x06}; };
  const std::vector<Spoiled> all = {
      {"CREATE_CQ", zero, "number 0"},          {"CREATE_CQ", zero, "number 0", 2},
      {"CREATE_QP", zero, "number 0"},          {"CREATE_QP", refuse, "status 0x06"},
      {"RST2INIT_QP", refuse, "status 0x06"},   {"INIT2RTR_QP", refuse, "status 0x06"},
      {"RTR2RTS_QP", refuse, "status 0x06"},    {"QUERY_HCA_CAP", refuse, "status 0x06"},
      {"QUERY_HCA_CAP", zero, "cannot be used"}};
  const std::uint32_t receives = GENERATE(0u, 8u);
  for (const Spoiled& each : all) {
    Mlx5Fixture fixture;
    fixture.receives = receives;
    int seen = 0;
    fixture.verbs.spoil = [&](const std::string& call, Bytes& out) {
      if (call == each.call && ++seen >= each.nth) each.change(out);
    };
    if (each.nth > 1 && receives == 0) continue;
    const Status status = whole_life(fixture);
    INFO(each.call << ", " << each.says);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().to_string().find(each.says) != std::string::npos);
    check_nothing_left(fixture);
  }
}
