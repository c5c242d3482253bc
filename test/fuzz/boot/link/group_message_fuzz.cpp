// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "boot/link/group_message.hpp"
#include "boot/link/vote_record.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

namespace {

constexpr int kOwn = 3;
constexpr int kSender = 1;

void check_body(GroupProtocol protocol, std::size_t count, ByteView body) {
  if (protocol == GroupProtocol::all_gather) {
    std::vector<Bytes> blocks;
    if (!take_blocks(body, count, blocks).ok()) return;
    expect(blocks.size() == count);
    ByteWriter writer;
    put_blocks(writer, blocks);
    const Bytes again = writer.take();
    expect(std::equal(again.begin(), again.end(), body.begin(), body.end()));
  } else if (protocol == GroupProtocol::barrier) {
    expect(check_barrier_body(body).ok() == body.empty());
  } else if (protocol == GroupProtocol::agree) {
    ByteReader reader(body);
    const auto theirs = VoteRecord::decode(reader);
    if (!theirs.ok()) return;
    const std::vector<AgreedField> fields = {{"a value", 3}};
    VoteRecord mine(kOwn, Status(), fields);
    if (mine.merge(theirs.value()).ok()) static_cast<void>(mine.outcome(fields));
  }
}

}  // namespace

// The first byte selects the rank's protocol and the expected number of blocks; a message follows.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const ByteView message = view(data + 1, size - 1);
  GroupHeader due;
  due.operation = Operation::test;
  due.protocol = static_cast<GroupProtocol>(1 + data[0] % 4);
  due.round = 2;
  due.sequence = 7;
  due.group = 0x01020304;
  const auto body = open_group_message(message, due, kOwn, kSender);
  if (body.ok()) {
    expect(body->size() + GroupHeader::kBytes == message.size());
    check_body(due.protocol, data[0] / 4 % 8, body.value());
  } else if (message.size() >= GroupHeader::kBytes) {
    // The error names a rank that is in another call.
    expect(body.error().message().find("rank 1 is in") != std::string::npos);
    check_body(due.protocol, data[0] / 4 % 8, message);
  }
  return 0;
}
