// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "net/queue/work_request.hpp"

/// Accesses of the software NIC to registered memory that this process has mapped. The caller has
/// checked key and range. Not blocking; any thread.
namespace oriel::net {

/// Stores bytes. An aligned word of 4 or 8 bytes is stored by one store with release order. All
/// other bytes are stored in any order.
void store_bytes(std::byte* to, ByteView from);
/// Loads bytes. An aligned word of 4 or 8 bytes is loaded by one load with acquire order.
void load_bytes(const std::byte* from, std::byte* to, std::size_t count);

/// Returns the word's new value by the format's formulas, in the low work.bytes bytes.
std::uint64_t apply_atomic(const AtomicWork& work, std::uint64_t old);
/// Executes `work` on the word at `at`, a multiple of work.bytes; returns the old value. Atomic
/// with all atomic instructions of the CPUs; acquire and release order.
std::uint64_t execute_atomic(const AtomicWork& work, std::byte* at);

}  // namespace oriel::net
