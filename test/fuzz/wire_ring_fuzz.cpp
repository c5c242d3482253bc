// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "input.hpp"
#include "net/wire_format.hpp"
#include "net/wire_ring.hpp"

using namespace oriel;
using namespace oriel::net;

// The input is what a peer has left in the memory of a ring: its counter, then bytes. Whatever it
// is, the reader comes to an end, and takes no more than there can be.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kRing = kRingBytesLeast;
  constexpr std::size_t kHeader = 4096;
  static const OwnedFd fd = make_sealed_memfd(ring_memory_bytes(kRing)).value();
  auto memory = SharedMapping::map(fd, ring_memory_bytes(kRing)).value();
  std::memset(memory.data(), 0, memory.size());
  const std::size_t counter = std::min(size, sizeof(std::uint64_t));
  std::memcpy(memory.data(), data, counter);
  std::memcpy(memory.data() + kHeader, data + counter, std::min(size - counter, kRing));

  RingReader reader(std::move(memory), kRing);
  Bytes message;
  std::size_t taken = 0;
  for (;;) {
    const auto read = reader.read(message);
    if (!read.ok() || !read.value()) return 0;
    taken += message.size();
    expect(!message.empty() && message.size() <= ring_message_bytes_most(kRing) && taken <= kRing);
    static_cast<void>(decode_message(message).ok());
  }
}
