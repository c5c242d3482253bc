// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/vote_record.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

// Decodes a peer's vote, merges it with this rank's, and encodes the result again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ByteReader reader(view(data, size));
  const auto theirs = VoteRecord::decode(reader);
  if (!theirs.ok()) return 0;
  const std::vector<AgreedField> fields = {{"a value", 3}, {"another", 4}};
  VoteRecord mine(2, Status(), fields);
  if (!mine.merge(theirs.value()).ok()) return 0;
  const Status outcome = mine.outcome(fields);
  ByteWriter writer;
  mine.encode(writer);
  const Bytes bytes = writer.take();
  ByteReader again(bytes);
  auto copy = VoteRecord::decode(again);
  expect(copy.ok());
  expect(copy.value().merge(mine).ok());  // idempotent
  const Status same = copy.value().outcome(fields);
  expect(same.ok() == outcome.ok());
  if (!same.ok()) expect(same.error().to_string() == outcome.error().to_string());
  return 0;
}
