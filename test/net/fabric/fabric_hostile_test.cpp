// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <vector>

#include <catch2/catch.hpp>

#include "net/fabric/fabric_address.hpp"
#include "net/fabric/fabric_endpoint.hpp"
#include "net/fabric/fabric_frame.hpp"
#include "net/fabric/fabric_pair.hpp"
#include "net/fabric/fabric_provider.hpp"
#include "net/wire/wire_format.hpp"
#include "support/fabric_provider_name.hpp"

// Unauthenticated peers who connect to the port of a fabric wire without the communicator's key,
// and peers that send what no NIC sends (3.13, 3.23).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Endpoint that sends arbitrary bytes to one wire.
class RawEnd {
 public:
  explicit RawEnd(const WireFabric& to)
      : table_(fabric_library().table), endpoint_(open(table_)), received_(8192) {
    const auto address = decode_fabric_address(to.local_address());
    to_ = endpoint_.add(address.value().address).value();
  }
  /// Sends and waits for the completion; `drive` has to make the other end's progress.
  template <class Drive>
  void send(ByteView bytes, Drive drive) {
    bool sent = false;
    REQUIRE(soon([&] {
      if (!sent) {
        const ssize_t status =
            ::fi_send(endpoint_.endpoint(), bytes.data(), bytes.size(), nullptr, to_, &context_);
        sent = status == 0;
      }
      drive();
      fi_cq_msg_entry entry{};
      const ssize_t count = table_.fi_cq_read(endpoint_.completions(), &entry, 1);
      if (count != -FI_EAVAIL) return count == 1;
      fi_cq_err_entry error{};
      return table_.fi_cq_readerr(endpoint_.completions(), &error, 0) == 1;
    }));
  }
  static FabricAddress address_of(const WireFabric& wire) {
    return decode_fabric_address(wire.local_address()).value();
  }

 private:
  static FabricEndpoint open(const FabricTable& table) {
    FabricRequest request;
    request.provider = oriel::test::fabric_provider();
    request.socket.ifname = "lo";
    auto info = choose_fabric(table, request);
    REQUIRE(info.ok());
    auto made = FabricEndpoint::open(table, std::move(info).value(), 64, 4);
    REQUIRE(made.ok());
    return std::move(made).value();
  }
  const FabricTable& table_;
  FabricEndpoint endpoint_;
  Bytes received_;
  fi_addr_t to_ = 0;
  fi_context2 context_{};
};

/// Pair of wires, and an unauthenticated peer who sends to b.
struct HostileFixture {
  explicit HostileFixture(const WireFabric::Options& options = fabric_options())
      : pair(options), unauthenticated(*pair.b) {}
  void send(ByteView bytes) {
    unauthenticated.send(bytes, [&] { take(); });
    for (int i = 0; i < 3; ++i) take();
  }
  void take() {
    WireMessage message;
    while (pair.b->receive(message)) got.push_back(std::move(message));
  }
  Bytes frame(const FrameKeys& keys, std::uint64_t from, std::uint64_t sequence,
              const WireMessage& message) const {
    const Bytes payload = Payload(payload_of(message)).take();
    return frame(keys, from, sequence, encode_head(message), payload);
  }
  static Bytes frame(const FrameKeys& keys, std::uint64_t from, std::uint64_t sequence,
                     const Bytes& head, const Bytes& payload) {
    const auto length = static_cast<std::uint32_t>(head.size());
    ByteWriter batch;
    batch.put(payload.empty() ? length : length | kPayloadBehind).put_raw(head);
    return sealed(keys, from, sequence, batch.take(), payload);
  }
  static Bytes sealed(const FrameKeys& keys, std::uint64_t from, std::uint64_t sequence,
                      const Bytes& batch, const Bytes& payload = {},
                      bool authenticates_payload = false) {
    Bytes made(kFrameHeadBytes);
    made.insert(made.end(), batch.begin(), batch.end());
    seal_frame(keys, {from, sequence, static_cast<std::uint16_t>(batch.size())}, made.data(),
               payload, authenticates_payload);
    made.insert(made.end(), payload.begin(), payload.end());
    return made;
  }
  // Returns the keys of a's frames: the test knows the communicator's key.
  FrameKeys keys() const {
    return frame_keys(fabric_options().key, RawEnd::address_of(*pair.a),
                      RawEnd::address_of(*pair.b));
  }
  std::uint64_t a() const { return pair.a->address().value; }
  /// Sends a message as a. Checks that exactly this one arrives after `before` others.
  void check_only(std::uint64_t sequence, std::uint64_t number, std::size_t before = 0) {
    send(frame(keys(), a(), sequence, numbered(number, 30)));
    await(before + 1);
    REQUIRE(got.size() == before + 1);
    CHECK(is_numbered(got.back(), number, 30));
    CHECK(pair.b->status().ok());
    got.clear();
  }
  void await(std::size_t messages) {
    REQUIRE(soon([&] { return take(), got.size() >= messages; }));
  }

  WirePair pair;
  RawEnd unauthenticated;
  std::vector<WireMessage> got;
};

}  // namespace

TEST_CASE("unauthenticated frames deliver no message, whatever sender they claim",
          "[req:3.13][req:3.23]") {
  HostileFixture fixture;
  const FrameKeys wrong = frame_keys(boot::Key::random(), RawEnd::address_of(*fixture.pair.a),
                                     RawEnd::address_of(*fixture.pair.b));
  fixture.send(fixture.frame(wrong, fixture.a(), 0, numbered(1, 8)));
  fixture.send(fixture.frame(wrong, fixture.pair.b->address().value, 0, numbered(1, 8)));
  fixture.send(fixture.frame(fixture.keys(), fixture.a() + 1, 0, numbered(1, 8)));
  // Returns b's own message to a, sent back to b.
  const FrameKeys other_way = frame_keys(fabric_options().key, RawEnd::address_of(*fixture.pair.b),
                                         RawEnd::address_of(*fixture.pair.a));
  fixture.send(fixture.frame(other_way, fixture.a(), 0, numbered(1, 8)));
  // Replays a message of an earlier wire with a's address.
  FabricAddress earlier = RawEnd::address_of(*fixture.pair.a);
  earlier.nonce[5] ^= std::byte{1};
  fixture.send(
      fixture.frame(frame_keys(fabric_options().key, earlier, RawEnd::address_of(*fixture.pair.b)),
                    fixture.a(), 0, numbered(1, 8)));
  fixture.check_only(0, 7);
}

TEST_CASE("a message that is played back, cut, lengthened or changed is not taken", "[req:3.23]") {
  HostileFixture fixture;
  const Bytes good = fixture.frame(fixture.keys(), fixture.a(), 0, numbered(1, 40));
  for (std::size_t bytes = 1; bytes < good.size(); bytes += bytes < 100 ? 7 : 1) {
    fixture.send(ByteView(good).first(bytes));
  }
  Bytes changed = good;
  changed.push_back(std::byte{0});
  fixture.send(changed);
  // Changes every byte but the payload's, which is not authenticated by default.
  for (std::size_t at = 0; at < good.size() - 40; ++at) {
    changed = good;
    changed[at] ^= std::byte{0x41};
    fixture.send(changed);
  }
  fixture.check_only(0, 1);
  for (int i = 0; i < 3; ++i) fixture.send(good);
  fixture.check_only(1, 2);
}

TEST_CASE("a message longer than any of ours costs its receiver nothing", "[req:3.23]") {
  auto small = fabric_options();
  small.payload_bytes_most = 1000;
  small.receives = 4;
  WirePair pair(fabric_options(), small);
  RawEnd unauthenticated(*pair.b);
  WireMessage message;
  const Bytes longer(5000);
  for (int i = 0; i < 20; ++i) {
    unauthenticated.send(longer, [&] { CHECK_FALSE(pair.b->receive(message)); });
  }
  bool sent = false;
  WireMessage next = numbered(3, 900);
  WireMessage ignored;
  REQUIRE(soon([&] {
    sent = sent || pair.a->send(pair.b->address(), next);
    pair.a->receive(ignored);
    return pair.b->receive(message);
  }));
  CHECK(is_numbered(message, 3, 900));
}

TEST_CASE("messages of an authenticated peer that no NIC sends are dropped", "[req:3.23]") {
  HostileFixture fixture;
  const FrameKeys keys = fixture.keys();
  WireRequest request;
  request.kind = WorkKind::read;
  request.from = {fixture.a() + 1};  // claims another sender
  request.from_queue = request.to_queue = 1;
  fixture.send(fixture.frame(keys, fixture.a(), 0, {request}));
  Bytes head = encode_head({request});
  head[0] = std::byte{9};  // a version that does not exist
  fixture.send(HostileFixture::frame(keys, fixture.a(), 1, head, {}));
  fixture.check_only(2, 5);
}

TEST_CASE("a batch whose lengths are wrong gives what is before them and nothing else",
          "[req:3.23]") {
  HostileFixture fixture;
  const FrameKeys keys = fixture.keys();
  std::uint64_t sequence = 0;
  const Bytes good = encode_message(numbered(7, 20));
  for (const std::uint32_t length :
       {std::uint32_t{0}, static_cast<std::uint32_t>(good.size() - 1),
        static_cast<std::uint32_t>(good.size() + 1), ~std::uint32_t{0}}) {
    ByteWriter batch;
    batch.put_blob(good).put(length).put_raw(good);
    fixture.send(HostileFixture::sealed(keys, fixture.a(), sequence++, batch.take()));
    fixture.await(1);
    CHECK(is_numbered(fixture.got[0], 7, 20));
    fixture.check_only(sequence++, 8, 1);
  }
  fixture.send(HostileFixture::sealed(keys, fixture.a(), sequence++, {}));
  fixture.check_only(sequence, 9);
}

TEST_CASE("a payload behind a batch is that of one message, whose length it has", "[req:3.23]") {
  HostileFixture fixture;
  const FrameKeys keys = fixture.keys();
  std::uint64_t sequence = 0;
  const WireMessage long_one = numbered(1, 1000), small = numbered(2, 20);
  const Bytes head = encode_head(long_one), whole = encode_message(small);
  const Bytes payload = Payload(payload_of(long_one)).take();
  const auto behind = static_cast<std::uint32_t>(head.size()) | kPayloadBehind;
  const auto batch_of = [&](int long_ones) {
    ByteWriter batch;
    batch.put_blob(whole);
    for (int i = 0; i < long_ones; ++i) batch.put(behind).put_raw(head);
    return batch.put_blob(whole).take();
  };
  // Sends a correct batch, with room left over.
  Bytes good = batch_of(1);
  good.resize(good.size() + 100);
  fixture.send(HostileFixture::sealed(keys, fixture.a(), sequence++, good, payload));
  fixture.await(3);
  CHECK(is_numbered(fixture.got[0], 2, 20));
  CHECK(is_numbered(fixture.got[1], 1, 1000));
  CHECK(is_numbered(fixture.got[2], 2, 20));
  fixture.check_only(sequence++, 3, 3);
  // Sends two messages that want the payload, or a payload that is missing, too short or too long.
  for (const std::size_t bytes : {1000u, 0u, 999u, 1001u}) {
    const int wanted = bytes == 1000 ? 2 : 1;
    Bytes other = payload;
    other.resize(bytes);
    fixture.send(HostileFixture::sealed(keys, fixture.a(), sequence++, batch_of(wanted), other));
    fixture.check_only(sequence++, 4, static_cast<std::size_t>(wanted));
  }
}

TEST_CASE("a changed payload is not taken where payloads are authenticated", "[req:3.23]") {
  auto authenticating = fabric_options();
  authenticating.authenticate_payloads = true;
  HostileFixture fixture(authenticating);
  const WireMessage message = numbered(1, 1000);
  const Bytes head = encode_head(message);
  ByteWriter batch;
  batch.put(static_cast<std::uint32_t>(head.size()) | kPayloadBehind).put_raw(head);
  const Bytes good = HostileFixture::sealed(fixture.keys(), fixture.a(), 0, batch.take(),
                                            Payload(payload_of(message)).take(), true);
  Bytes changed = good;
  changed.back() ^= std::byte{0x41};
  fixture.send(changed);
  fixture.send(good);
  fixture.await(1);
  REQUIRE(fixture.got.size() == 1);
  CHECK(is_numbered(fixture.got[0], 1, 1000));
}

TEST_CASE("a message that does not come holds up those behind it for a while only", "[req:3.13]") {
  ManualClock clock;
  auto options = fabric_options();
  options.clock = &clock;
  options.receives = 8;
  HostileFixture fixture(options);
  const FrameKeys keys = fixture.keys();
  for (const std::uint64_t sequence : {3u, 1u, 5u}) {
    fixture.send(fixture.frame(keys, fixture.a(), sequence, numbered(sequence, 10)));
  }
  for (int i = 0; i < 100; ++i) fixture.take();
  CHECK(fixture.got.empty());
  fixture.send(fixture.frame(keys, fixture.a(), 0, numbered(0, 10)));
  fixture.await(2);
  clock.advance(options.timeout);
  fixture.await(3);
  clock.advance(options.timeout);
  fixture.await(4);
  const std::vector<std::uint64_t> order = {0, 1, 3, 5};
  for (std::size_t i = 0; i < 4; ++i) CHECK(is_numbered(fixture.got[i], order[i], 10));
  fixture.send(fixture.frame(keys, fixture.a(), 4, numbered(4, 10)));  // too late
  // Once waiting messages hold every buffer, no other can arrive: delivers them in order.
  for (std::uint64_t n = 10; n < 18; ++n) {
    fixture.send(fixture.frame(keys, fixture.a(), n, numbered(n, 10)));
  }
  fixture.await(12);
  for (std::uint64_t n = 10; n < 18; ++n) CHECK(is_numbered(fixture.got[n - 6], n, 10));
}
