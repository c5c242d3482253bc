// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_message.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/fabric/fabric_address.hpp"

namespace oriel::comm {
namespace {

constexpr std::uint32_t kQueueMost = 0xff'ffff;

/// Returns the bytes of an address: 4 or 16.
std::size_t width_of(std::uint8_t family) {
  return family == 4 ? 4 : 16;
}

void put_interface(ByteWriter& to, const PathInterface& interface) {
  to.put(interface.family);
  if (interface.family == 0) return;
  const std::size_t width = width_of(interface.family);
  to.put_raw(std::as_bytes(std::span(interface.address)).first(width));
  to.put(static_cast<std::uint8_t>(interface.networks.size()));
  for (const IpNetwork& network : interface.networks) {
    to.put(network.length).put_raw(std::as_bytes(std::span(network.bytes)).first(width));
  }
}

std::array<std::uint8_t, 16> read_address(ByteReader& from, std::size_t width) {
  std::array<std::uint8_t, 16> address{};
  const ByteView raw = from.get_raw(width);
  std::copy(raw.begin(), raw.end(), std::as_writable_bytes(std::span(address)).begin());
  return address;
}

Status read_interface(ByteReader& from, PathInterface& interface) {
  interface.family = from.get<std::uint8_t>();
  if (interface.family == 0) return {};
  if (interface.family != 4 && interface.family != 6) {
    return bad_message(fmt::format("an address of family {}", interface.family));
  }
  const std::size_t width = width_of(interface.family);
  interface.address = read_address(from, width);
  const auto count = from.get<std::uint8_t>();
  if (count > PathInterface::kNetworksMost) {
    return bad_message(fmt::format("{} networks of an interface", count));
  }
  for (std::size_t i = 0; i < count && from.good(); ++i) {
    IpNetwork network;
    network.length = from.get<std::uint8_t>();
    network.bytes = read_address(from, width);
    if (from.good() && !is_network(network, interface.family)) {
      return bad_message(fmt::format("a network of IPv{} with a prefix of {} bits",
                                     interface.family, network.length));
    }
    interface.networks.push_back(network);
  }
  return {};
}

}  // namespace

Bytes encode(const NetworkPlace& place) {
  ByteWriter to;
  to.put(place.machine).put(static_cast<std::uint8_t>(place.interfaces.size()));
  for (const PathInterface& interface : place.interfaces) put_interface(to, interface);
  return to.take();
}

Result<NetworkPlace> decode_place(ByteView bytes) {
  ByteReader from(bytes);
  NetworkPlace place;
  place.machine = from.get<std::uint64_t>();
  const auto paths = from.get<std::uint8_t>();
  // Checks the number before reading any path.
  if (from.good() && (paths == 0 || paths > net::kPathsMost)) {
    return bad_message(fmt::format("{} paths", paths));
  }
  place.interfaces.resize(paths);
  for (PathInterface& interface : place.interfaces) ORIEL_CHECK(read_interface(from, interface));
  ORIEL_CHECK(from.finish("where a rank is"));
  return place;
}

int ranks_beside(std::span<const NetworkPlace> places, std::size_t self) {
  return static_cast<int>(std::count_if(
      places.begin(), places.end(),
      [&](const NetworkPlace& place) { return place.machine == places[self].machine; }));
}

// Uses an odd step, so that the numbers of all peers differ. No byte of the step is 0, so that the
// numbers of neighbours differ in every byte.
std::uint32_t queue_number(std::uint32_t first, int peer) {
  return (first + static_cast<std::uint32_t>(peer) * 0x2f3d1bu) & kQueueMost;
}

Bytes encode(const NetworkHello& hello) {
  ByteWriter to;
  to.put_raw(hello.socket).put(static_cast<std::uint8_t>(hello.fabrics.size()));
  for (const Bytes& fabric : hello.fabrics) to.put_blob(fabric);
  to.put(hello.first_queue);
  to.put_blob(encode(hello.windows));
  return to.take();
}

Result<NetworkHello> decode_hello(ByteView bytes) {
  ByteReader from(bytes);
  NetworkHello hello;
  const ByteView name = from.get_raw(hello.socket.size());
  std::copy(name.begin(), name.end(), hello.socket.begin());
  const auto fabrics = from.get<std::uint8_t>();
  if (fabrics > net::kPathsMost) return bad_message(fmt::format("{} fabric wires", fabrics));
  for (std::size_t i = 0; i < fabrics; ++i) {
    const ByteView fabric = from.get_blob();
    if (fabric.size() > net::FabricAddress::kEncodedBytesMost) {
      return bad_message(fmt::format("an address of {} bytes", fabric.size()));
    }
    hello.fabrics.emplace_back(fabric.begin(), fabric.end());
  }
  hello.first_queue = from.get<std::uint32_t>();
  if (hello.first_queue > kQueueMost) {
    return bad_message(fmt::format("a first queue {:#x}", hello.first_queue));
  }
  const ByteView windows = from.get_blob();
  ORIEL_CHECK(from.finish("a rank's network"));
  ORIEL_TRY(hello.windows, decode_keys(windows));
  return hello;
}

}  // namespace oriel::comm
