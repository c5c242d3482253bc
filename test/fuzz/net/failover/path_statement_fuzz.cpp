// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "fuzz/input.hpp"
#include "net/failover/path_agreement.hpp"

using namespace oriel;
using namespace oriel::net;

// An accepted statement about a queue's path is encoded to the same bytes again. After any
// statement the receiver is on an existing path.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::size_t kBytes = encode_statement({}).size();
  ByteView bytes = view(data, size);
  PathAgreement agreement({}, 2);
  TimePoint now{std::chrono::seconds(1000)};
  while (!bytes.empty()) {
    const ByteView part = bytes.first(std::min(kBytes, bytes.size()));
    bytes = bytes.subspan(part.size());
    const auto statement = decode_statement(part);
    if (!statement.ok()) continue;
    expect(encode_statement(*statement) == Bytes(part.begin(), part.end()));
    const std::uint32_t before = agreement.epoch();
    agreement.receive(*statement, now);
    now += std::chrono::milliseconds(1);
    agreement.tick(now);
    expect(agreement.epoch() >= before);
    expect(!agreement.has_queue() || (agreement.path() >= 0 && agreement.path() < 2));
    for (const auto& action : agreement.take_actions()) {
      const bool has_path = action.kind != PathAgreement::Action::Kind::fail;
      expect(!has_path || (action.path >= 0 && action.path < 2));
    }
    static_cast<void>(agreement.take_statement(now));
    if (size % 3 == 0 && agreement.has_queue()) agreement.leave(now);
  }
  return 0;
}
