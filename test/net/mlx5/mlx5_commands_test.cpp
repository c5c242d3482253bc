// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_commands.hpp"

#include <initializer_list>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/mlx5_handle.hpp"

// Vectors written by hand from the interface's description (mlx5_ifc.h), byte by byte and apart
// from the tables of fields that the encoder uses. No adapter has confirmed them: unverified.

using namespace oriel;
using namespace oriel::net;

namespace {

/// Bytes that are not zero, at their place.
struct At {
  std::size_t offset;
  std::vector<int> bytes;
};

Bytes vector_of(std::size_t size, const std::vector<At>& parts) {
  Bytes made(size);
  for (const At& part : parts) {
    for (std::size_t i = 0; i < part.bytes.size(); ++i) {
      made.at(part.offset + i) = static_cast<std::byte>(part.bytes[i]);
    }
  }
  return made;
}

/// The places where two differ, for a message.
std::string difference(const Bytes& is, const Bytes& wanted) {
  if (is.size() != wanted.size()) return "sizes differ";
  std::string found;
  for (std::size_t i = 0; i < is.size(); ++i) {
    if (is[i] == wanted[i]) continue;
    found += std::to_string(i) + ": " + std::to_string(std::to_integer<int>(is[i])) + " for " +
             std::to_string(std::to_integer<int>(wanted[i])) + "; ";
  }
  return found;
}

constexpr std::uint32_t kNumber = 0x123456;

mlx5::ReceiveSettings receive_settings() {
  mlx5::ReceiveSettings settings;
  settings.remote_number = 0x654321;
  settings.psn = 0x0a0b0c;
  settings.mtu = 5;
  settings.log_reads_answered = 4;
  settings.path.own_gid_index = 3;
  settings.path.hop_limit = 0xff;
  settings.path.traffic_class = 0x68;
  settings.path.service_level = 3;
  settings.path.gid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  return settings;
}

/// What all forms of INIT2RTR have in common.
std::vector<At> receive_parts(std::initializer_list<At> more) {
  std::vector<At> parts = {{0, {0x05, 0x03}}, {9, {0x12, 0x34, 0x56}},
                           {32, {0xbe}},      {45, {0x65, 0x43, 0x21}},
                           {169, {0x80}},     {172, {0x0c, 0x0a, 0x0b, 0x0c}}};
  parts.insert(parts.end(), more);
  return parts;
}

}  // namespace

TEST_CASE("fields are placed as bits from the most significant one", "[req:3.12]") {
  Bytes bytes(8, std::byte{0xff});
  mlx5::put(bytes, {4, 8}, 0x5a);
  CHECK(bytes[0] == std::byte{0xf5});
  CHECK(bytes[1] == std::byte{0xaf});
  CHECK(bytes[2] == std::byte{0xff});
  CHECK(mlx5::get(bytes, {4, 8}) == 0x5a);
  mlx5::put(bytes, {0, 64}, 0x0123456789abcdef);
  CHECK(bytes[0] == std::byte{0x01});
  CHECK(bytes[7] == std::byte{0xef});
  CHECK(mlx5::get(bytes, {8, 16}) == 0x2345);
  mlx5::put(bytes, {8, 4}, 0xff7);  // more than there is room for
  CHECK(bytes[1] == std::byte{0x73});
}

TEST_CASE("CREATE_CQ has the bytes of the vector (unverified)", "[req:3.12]") {
  mlx5::CqSettings settings;
  settings.place = {0x11223344, 0x55667788, 0x10080};
  settings.log_size = 10;
  settings.log_page_size = 4;
  settings.uar_page = 0xabcdef;
  settings.event_queue = 0x2b;
  const Bytes wanted = vector_of(272, {{0, {0x04, 0x00}},
                                       {16, {0x02, 0x12}},
                                       {20, {0x55, 0x66, 0x77, 0x88}},
                                       {28, {0x0a, 0xab, 0xcd, 0xef}},
                                       {39, {0x2b}},
                                       {40, {0x04}},
                                       {77, {0x01, 0x00, 0x80}},
                                       {88, {0x11, 0x22, 0x33, 0x44}},
                                       {92, {0x80}}});
  CHECK(difference(mlx5::create_cq(settings), wanted).empty());
  // Filled in turn: all the same but for one bit.
  settings.collapsed = false;
  Bytes in_turn = wanted;
  in_turn[17] = std::byte{0x02};
  CHECK(difference(mlx5::create_cq(settings), in_turn).empty());
}

TEST_CASE("CREATE_QP has the bytes of the vector (unverified)", "[req:3.12]") {
  mlx5::QpSettings settings;
  settings.place = {0x11223344, 0x55667788, 0x10040};
  settings.log_size = 10;
  settings.domain = 0x0d0e0f;
  settings.uar_page = 0xabcdef;
  settings.cq = 0x010203;
  const Bytes wanted = vector_of(272, {{0, {0x05, 0x00}},
                                       {26, {0x18}},
                                       {29, {0x0d, 0x0e, 0x0f}},
                                       {34, {0x50}},
                                       {37, {0xab, 0xcd, 0xef}},
                                       {149, {0x01, 0x02, 0x03}},
                                       {181, {0x01, 0x02, 0x03}},
                                       {189, {0x01, 0x00, 0x40}},
                                       {196, {0x03}},
                                       {232, {0x10}},
                                       {252, {0x55, 0x66, 0x77, 0x88}},
                                       {264, {0x11, 0x22, 0x33, 0x44}},
                                       {268, {0x80}}});
  CHECK(difference(mlx5::create_qp(settings), wanted).empty());
}

TEST_CASE("CREATE_QP with receives, and these, have the bytes of their vectors (unverified)",
          "[B4]") {
  mlx5::QpSettings settings;
  settings.place = {0x11223344, 0x55667788, 0x10040};
  settings.log_size = 10;
  settings.domain = 0x0d0e0f;
  settings.uar_page = 0xabcdef;
  settings.cq = 0x010203;
  settings.receives = 256;
  settings.receive_cq = 0x040506;
  const Bytes wanted = vector_of(272, {{0, {0x05, 0x00}},
                                       {26, {0x18}},
                                       {29, {0x0d, 0x0e, 0x0f}},
                                       {33, {0x40, 0x50}},  // 2^8 of 16 bytes; 2^10 blocks
                                       {37, {0xab, 0xcd, 0xef}},
                                       {149, {0x01, 0x02, 0x03}},
                                       {181, {0x04, 0x05, 0x06}},
                                       {189, {0x01, 0x00, 0x40}},
                                       {232, {0x10}},  // and no bits at 196: a ring of its own
                                       {252, {0x55, 0x66, 0x77, 0x88}},
                                       {264, {0x11, 0x22, 0x33, 0x44}},
                                       {268, {0x80}}});
  CHECK(difference(mlx5::create_qp(settings), wanted).empty());
  // No bytes, the key that ends a list, no address.
  CHECK(
      difference(mlx5::empty_receives(3), vector_of(48, {{6, {1}}, {22, {1}}, {38, {1}}})).empty());
  CHECK(mlx5::empty_receives(0).empty());
}

TEST_CASE("the steps of a queue pair have the bytes of their vectors (unverified)", "[req:3.12]") {
  const std::vector<int> number = {0x12, 0x34, 0x56};
  SECTION("RST2INIT_QP") {
    const Bytes wanted = vector_of(272, {{0, {0x05, 0x02}},
                                         {9, number},
                                         {26, {0x18}},
                                         {50, {0x01, 0x02}},
                                         {85, {0x01}},
                                         {168, {0x00, 0x03, 0xe0}}});
    CHECK(difference(mlx5::reset_to_init(kNumber, 1, 0x0102), wanted).empty());
  }
  SECTION("INIT2RTR_QP over InfiniBand, in one subnet") {
    mlx5::ReceiveSettings settings = receive_settings();
    settings.path.lid = 0x1234;
    const Bytes wanted = vector_of(272, receive_parts({{54, {0x12, 0x34}}, {84, {0x03}}}));
    CHECK(difference(mlx5::init_to_ready_to_receive(kNumber, settings), wanted).empty());
  }
  SECTION("INIT2RTR_QP over InfiniBand, to another subnet") {
    mlx5::ReceiveSettings settings = receive_settings();
    settings.path.lid = 0x1234;
    settings.path.global_route = true;
    const Bytes wanted =
        vector_of(272, receive_parts({{53, {0x80, 0x12, 0x34}},
                                      {57, {0x03}},
                                      {59, {0xff, 0x06, 0x80}},
                                      {64, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
                                      {84, {0x03}}}));
    CHECK(difference(mlx5::init_to_ready_to_receive(kNumber, settings), wanted).empty());
  }
  SECTION("INIT2RTR_QP over Ethernet") {
    mlx5::ReceiveSettings settings = receive_settings();
    settings.path.ethernet = true;
    settings.path.udp_port = 0xc123;
    settings.path.link_address = {0x10, 0x11, 0x12, 0x13, 0x14, 0x15};
    const Bytes wanted =
        vector_of(272, receive_parts({{57, {0x03}},
                                      {59, {0xff}},
                                      {64, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
                                      {81, {0x1a, 0xc1, 0x23, 0x30}},
                                      {86, {0x10, 0x11, 0x12, 0x13, 0x14, 0x15}}}));
    CHECK(difference(mlx5::init_to_ready_to_receive(kNumber, settings), wanted).empty());
  }
  SECTION("RTR2RTS_QP") {
    mlx5::SendSettings settings;
    settings.psn = 0x0a0b0c;
    settings.log_reads_sent = 4;
    const Bytes wanted = vector_of(272, {{0, {0x05, 0x04}},
                                         {9, number},
                                         {56, {0xa0}},
                                         {137, {0x87, 0xe0}},
                                         {145, {0x0a, 0x0b, 0x0c}}});
    CHECK(difference(mlx5::ready_to_receive_to_send(kNumber, settings), wanted).empty());
  }
  SECTION("2ERR_QP, 2RST_QP, QUERY_QP") {
    CHECK(mlx5::to_error(kNumber) == vector_of(16, {{0, {0x05, 0x07}}, {9, number}}));
    CHECK(mlx5::to_reset(kNumber) == vector_of(16, {{0, {0x05, 0x0a}}, {9, number}}));
    CHECK(mlx5::query_qp(kNumber) == vector_of(16, {{0, {0x05, 0x0b}}, {9, number}}));
  }
  SECTION("QUERY_HCA_CAP") {
    CHECK(mlx5::query_capabilities(mlx5::QueryCapabilities::kAtomic) ==
          vector_of(16, {{0, {0x01, 0x00}}, {7, {0x07}}}));
  }
}

TEST_CASE("answers are read as they are, and nonsense in them is refused", "[req:3.12]") {
  const Bytes refused = vector_of(16, {{0, {0x05}}, {4, {0x00, 0xc0, 0xff, 0xee}}});
  CHECK(mlx5::answer_of(refused).status == 5);
  CHECK(mlx5::answer_of(refused).syndrome == 0x00c0ffee);
  CHECK_FALSE(mlx5::answer_of(refused).good());
  CHECK(mlx5::created_number(vector_of(16, {{9, {0x12, 0x34, 0x56}}})).value() == kNumber);
  CHECK_FALSE(mlx5::created_number(Bytes(16)).ok());
  constexpr QueueState kStates[] = {QueueState::reset, QueueState::init,
                                    QueueState::ready_to_receive, QueueState::ready_to_send};
  for (int state = 0; state < 16; ++state) {
    const auto found = mlx5::queried_state(vector_of(272, {{24, {state << 4}}}));
    INFO("state " << state);
    REQUIRE(found.ok() == (state < 4 || state == 6));
    if (state < 4) CHECK(found.value() == kStates[state]);
    if (state == 6) CHECK(found.value() == QueueState::error);
  }
}

namespace {

Mlx5QueueHandle good_handle() {
  Mlx5QueueHandle handle;
  handle.number = kNumber;
  handle.psn = 0xffffff;
  handle.link_layer = LinkLayer::ethernet;
  handle.mtu = 5;
  handle.log_reads_answered = 4;
  handle.roce_version = 2;
  handle.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  return handle;
}

}  // namespace

TEST_CASE("a queue's handle survives its bytes", "[req:3.11]") {
  Mlx5QueueHandle handle = good_handle();
  CHECK(encode_handle(handle).size() == kMlx5HandleBytes);
  CHECK(parse_handle(encode_handle(handle)).value() == handle);
  handle.link_layer = LinkLayer::infiniband;
  handle.roce_version = 0;
  handle.lid = 0xbfff;
  handle.gid = {};
  CHECK(parse_handle(encode_handle(handle)).value() == handle);
}

TEST_CASE("a hostile handle is refused whatever is wrong with it", "[req:3.23]") {
  const Bytes good = encode_handle(good_handle());
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(parse_handle(ByteView(good).first(size)).ok());
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(parse_handle(longer).ok());

  const auto refuses = [](auto change) {
    Mlx5QueueHandle handle = good_handle();
    change(handle);
    return !parse_handle(encode_handle(handle)).ok();
  };
  CHECK(refuses([](auto& handle) { handle.number = 0; }));
  CHECK(refuses([](auto& handle) { handle.number = 0x1000000; }));
  CHECK(refuses([](auto& handle) { handle.psn = 0x1000000; }));
  CHECK(refuses([](auto& handle) { handle.link_layer = LinkLayer{0}; }));
  CHECK(refuses([](auto& handle) { handle.link_layer = LinkLayer{3}; }));
  CHECK(refuses([](auto& handle) { handle.mtu = 0; }));
  CHECK(refuses([](auto& handle) { handle.mtu = 6; }));
  CHECK(refuses([](auto& handle) { handle.log_reads_answered = 8; }));
  CHECK(refuses([](auto& handle) { handle.roce_version = 0; }));
  CHECK(refuses([](auto& handle) { handle.roce_version = 3; }));
  CHECK(refuses([](auto& handle) { handle.gid = {}; }));
  CHECK(refuses([](auto& handle) {
    handle.link_layer = LinkLayer::infiniband;
    handle.roce_version = 0;  // but no lid
  }));
  CHECK(refuses([](auto& handle) {
    handle.link_layer = LinkLayer::infiniband;
    handle.roce_version = 0;
    handle.lid = 0xc000;  // that of a multicast group
  }));
}
