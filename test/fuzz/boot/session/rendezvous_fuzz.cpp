// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/rendezvous.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

// Feeds hellos, each from its own connection, then closed connections and timers. Also decodes the
// root service's messages to a rank.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input = view(data, size);
  const auto peers = decode_peers(input, 8);
  if (peers.ok()) {
    const Bytes again = encode_peers(peers.value());
    expect(std::equal(again.begin(), again.end(), input.begin(), input.end()));
  }

  Rendezvous rendezvous(7, Deadline::at(TimePoint(std::chrono::seconds(1))));
  TimePoint now{};
  Rendezvous::Connection connection = 1;
  for (std::size_t at = 0; at + RootHello::kBytes + 1 <= size; at += RootHello::kBytes + 1) {
    const auto hello = RootHello::decode(input.subspan(at + 1, RootHello::kBytes));
    if (hello.ok()) {
      expect(hello.value().encode().size() == RootHello::kBytes);
      rendezvous.on_hello(connection, hello.value(), now);
    }
    switch (data[at] % 4) {
      case 0:
        rendezvous.on_done(connection);
        break;
      case 1:
        rendezvous.on_closed(connection, now);
        break;
      case 2:
        rendezvous.on_time(now += std::chrono::milliseconds(data[at]));
        break;
      default:
        break;
    }
    static_cast<void>(rendezvous.next_timer());
    for (const auto& out : rendezvous.take_outgoing()) expect(out.to <= connection);
    ++connection;
  }
  return 0;
}
