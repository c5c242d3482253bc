// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "net/queue/work_request.hpp"

/// What the software NIC does to registered memory that this process has mapped. The caller has
/// checked key and range. Not blocking; any thread.
namespace oriel::net {

/// Stores bytes. A word of 4 or 8 bytes at an address that is a multiple of its size is stored at
/// once, after what was stored before (release); the bytes of anything else in any order.
void store_bytes(std::byte* to, ByteView from);
/// The counterpart: words at once, acquire.
void load_bytes(const std::byte* from, std::byte* to, std::size_t count);

/// The new value of a word by the format's formulas, in the low work.bytes bytes.
std::uint64_t apply_atomic(const AtomicWork& work, std::uint64_t old);
/// Does it to the word at `at`, a multiple of work.bytes, atomically with all others that use the
/// processor's atomic instructions; acquires and releases. The old value.
std::uint64_t execute_atomic(const AtomicWork& work, std::byte* at);

}  // namespace oriel::net
