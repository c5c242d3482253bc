// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "fuzz/input.hpp"
#include "net/wire/wire_format.hpp"
#include "net/wire/wire_ring.hpp"

using namespace oriel;
using namespace oriel::net;

// The input is the ring memory that a peer left: its counter, then bytes. For any input, the reader
// terminates, takes no more than the ring holds, and yields the same bytes in place and by copy.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kRing = 4096;
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
    const auto length = reader.begin();
    if (!length.ok() || length.value() == 0) return 0;
    message.clear();
    reader.copy_out(0, length.value(), message);
    expect(reader.expose(0, length.value()) == Payload(message));
    reader.end();
    taken += message.size();
    expect(!message.empty() && message.size() <= ring_message_bytes_most(kRing) && taken <= kRing);
    static_cast<void>(decode_message(message).ok());
  }
}
