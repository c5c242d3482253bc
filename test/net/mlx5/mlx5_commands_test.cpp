// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_commands.hpp"

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/mlx5_handle.hpp"

// Vectors written by hand from the interface's description (mlx5_ifc.h), byte by byte and without
// the tables of fields that the encoder uses. Unverified: no adapter has confirmed them.

using namespace oriel;
using namespace oriel::net;

namespace {

/// Returns `size` zero bytes with the bytes of `parts` set: "offset:bytes in hexadecimal".
Bytes vector_of(std::size_t size, const std::string& parts) {
  Bytes made(size);
  std::istringstream all(parts);
  for (std::string part; all >> part;) {
    std::size_t digit = 0;
    const std::size_t offset = std::stoul(part, &digit);
    for (std::size_t i = 0; ++digit + 1 < part.size(); ++i, ++digit) {
      made.at(offset + i) = static_cast<std::byte>(std::stoi(part.substr(digit, 2), nullptr, 16));
    }
  }
  return made;
}

/// Returns a text that lists the differences.
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

mlx5::CqSettings cq(bool collapsed) {
  return {{0x11223344, 0x55667788, 0x10080}, 10, 4, 0xabcdef, 0x2b, collapsed};
}
mlx5::QpSettings qp(std::uint32_t receives) {
  return {{0x11223344, 0x55667788, 0x10040}, 10, 0x0d0e0f, 0xabcdef, 0x010203, receives, 0x040506};
}
/// Returns INIT2RTR with the path as `change` sets it, by default over InfiniBand.
Bytes receive(const std::function<void(mlx5::PathSettings&)>& change) {
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
  change(settings.path);
  return mlx5::init_to_ready_to_receive(kNumber, settings);
}
/// Bytes common to all forms of INIT2RTR.
const std::string kReceive = "0:0503 9:123456 32:be 45:654321 169:80 172:0c0a0b0c ";
const std::string kGid = "64:0102030405060708090a0b0c0d0e0f10 ";

}  // namespace

TEST_CASE("fields are placed as bits from the most significant one", "[req:3.12]") {
  Bytes bytes(8, std::byte{0xff});
  mlx5::put(bytes, {4, 8}, 0x5a);
  CHECK(bytes == vector_of(8, "0:f5afffffffffffff"));
  CHECK(mlx5::get(bytes, {4, 8}) == 0x5a);
  mlx5::put(bytes, {0, 64}, 0x0123456789abcdef);
  CHECK(bytes == vector_of(8, "0:0123456789abcdef"));
  CHECK(mlx5::get(bytes, {8, 16}) == 0x2345);
  mlx5::put(bytes, {8, 4}, 0xff7);  // more than there is room for
  CHECK(bytes[1] == std::byte{0x73});
}

TEST_CASE("each command for the adapter has the bytes of its test vector (unverified)",
          "[req:3.12][B4]") {
  const std::string cq_tail = "20:55667788 28:0aabcdef 39:2b 40:04 77:010080 88:11223344 92:80";
  const std::string qp_parts =
      "0:0500 26:18 29:0d0e0f 37:abcdef 149:010203 189:010040 232:10 252:55667788 264:11223344 "
      "268:80 ";
  const std::vector<std::tuple<const char*, Bytes, std::size_t, std::string>> all = {
      {"CREATE_CQ", mlx5::create_cq(cq(true)), 272, "0:0400 16:0212 " + cq_tail},
      {"CREATE_CQ, filled in turn", mlx5::create_cq(cq(false)), 272, "0:0400 16:0202 " + cq_tail},
      {"CREATE_QP", mlx5::create_qp(qp(0)), 272, qp_parts + "34:50 181:010203 196:03"},
      // 2^8 receives of 16 bytes, 2^10 WQEBBs, and no bits at 196: a receive ring of its own.
      {"CREATE_QP with receives", mlx5::create_qp(qp(256)), 272, qp_parts + "33:4050 181:040506"},
      // No bytes, the key that ends a list, no address.
      {"receives", mlx5::empty_receives(3), 48, "6:01 22:01 38:01"},
      {"no receives", mlx5::empty_receives(0), 0, ""},
      {"RST2INIT_QP", mlx5::reset_to_init(kNumber, 1, 0x0102), 272,
       "0:0502 9:123456 26:18 50:0102 85:01 168:0003e0"},
      {"INIT2RTR_QP in one InfiniBand subnet", receive([](auto& path) { path.lid = 0x1234; }), 272,
       kReceive + "54:1234 84:03"},
      {"INIT2RTR_QP to another subnet", receive([](auto& path) {
         path.lid = 0x1234;
         path.global_route = true;
       }),
       272, kReceive + kGid + "53:801234 57:03 59:ff0680 84:03"},
      {"INIT2RTR_QP over Ethernet", receive([](auto& path) {
         path.ethernet = true;
         path.udp_port = 0xc123;
         path.link_address = {0x10, 0x11, 0x12, 0x13, 0x14, 0x15};
       }),
       272, kReceive + kGid + "57:03 59:ff 81:1ac12330 86:101112131415"},
      {"RTR2RTS_QP",
       mlx5::ready_to_receive_to_send(kNumber, {.psn = 0x0a0b0c, .log_reads_sent = 4}), 272,
       "0:0504 9:123456 56:a0 137:87e0 145:0a0b0c"},
      {"2ERR_QP", mlx5::to_error(kNumber), 16, "0:0507 9:123456"},
      {"QUERY_HCA_CAP", mlx5::query_capabilities(mlx5::QueryCapabilities::kAtomic), 16,
       "0:0100 7:07"},
  };
  for (const auto& [name, command, size, parts] : all) {
    INFO(name);
    CHECK(difference(command, vector_of(size, parts)).empty());
  }
}

TEST_CASE("answers are read as they are, and nonsense in them is refused", "[req:3.12]") {
  const Bytes refused = vector_of(16, "0:05 4:00c0ffee");
  CHECK(mlx5::answer_of(refused).status == 5);
  CHECK(mlx5::answer_of(refused).syndrome == 0x00c0ffee);
  CHECK_FALSE(mlx5::answer_of(refused).good());
  CHECK(mlx5::created_number(vector_of(16, "9:123456")).value() == kNumber);
  CHECK_FALSE(mlx5::created_number(Bytes(16)).ok());
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
void use_infiniband(Mlx5QueueHandle& handle, std::uint16_t lid) {
  handle.link_layer = LinkLayer::infiniband;
  handle.roce_version = 0;
  handle.lid = lid;
}

}  // namespace

TEST_CASE("a queue's handle is unchanged after it was encoded and parsed", "[req:3.11]") {
  Mlx5QueueHandle handle = good_handle();
  CHECK(encode_handle(handle).size() == kMlx5HandleBytes);
  CHECK(parse_handle(encode_handle(handle)).value() == handle);
  use_infiniband(handle, 0xbfff);
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
  const std::vector<void (*)(Mlx5QueueHandle&)> changes = {
      [](auto& handle) { handle.number = 0; },
      [](auto& handle) { handle.number = 0x1000000; },
      [](auto& handle) { handle.psn = 0x1000000; },
      [](auto& handle) { handle.link_layer = LinkLayer{0}; },
      [](auto& handle) { handle.link_layer = LinkLayer{3}; },
      [](auto& handle) { handle.mtu = 0; },
      [](auto& handle) { handle.mtu = 6; },
      [](auto& handle) { handle.log_reads_answered = 8; },
      [](auto& handle) { handle.roce_version = 0; },
      [](auto& handle) { handle.roce_version = 3; },
      [](auto& handle) { handle.gid = {}; },
      [](auto& handle) { use_infiniband(handle, 0); },
      [](auto& handle) { use_infiniband(handle, 0xc000); },  // multicast LID
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Mlx5QueueHandle handle = good_handle();
    changes[i](handle);
    INFO("change " << i);
    CHECK_FALSE(parse_handle(encode_handle(handle)).ok());
  }
}
