// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/bytes.hpp"

/// Wraps the libsodium primitives that set-up needs: random bytes, keyed BLAKE2b, comparison in
/// constant time, wiping. All functions are thread-safe and cannot fail: without a source of
/// randomness, libsodium ends the process.
namespace oriel::boot {

/// Purpose of a key. Each purpose has its own key, so a MAC made for one purpose is invalid for
/// another.
enum class KeyPurpose : std::uint16_t {
  rendezvous = 1,   ///< a rank and the root service
  link = 2,         ///< two ranks, over TCP
  fd_exchange = 3,  ///< two ranks of a node, over unix sockets
  wire = 4,         ///< messages between NICs, each of which carries a MAC
  split = 5,        ///< secrets of the communicators into which this one is split
};

using Digest = std::array<std::byte, 32>;

/// 32 secret bytes, wiped when destroyed.
class Key {
 public:
  static constexpr std::size_t kBytes = 32;

  Key() = default;  ///< all zero, to be assigned later
  explicit Key(std::span<const std::byte, kBytes> bytes);
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();

  static Key random();
  /// Derives the key for `purpose` of the communicator `realm` from its secret.
  static Key derive(const Key& secret, KeyPurpose purpose, std::uint64_t realm);
  /// Returns the secret of the communicator that the ranks of `color` form in a split. `parent` is
  /// the parent's key for KeyPurpose::split; `serial` is the split's number, never used twice.
  static Key derive_child(const Key& parent, std::uint64_t serial, std::int32_t color);

  std::span<const std::byte, kBytes> bytes() const { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_{};
};

void fill_random(std::span<std::byte> out);
std::uint64_t random_number();

/// Computes keyed BLAKE2b over the parts. Each part is prefixed by its length, so no two lists hash
/// alike.
Digest keyed_hash(const Key& key, std::initializer_list<ByteView> parts);
/// Computes BLAKE2b without a key: an integrity check, not a MAC.
Digest plain_hash(ByteView bytes);

/// Computes keyed SipHash-2-4 (16 bytes) with the first half of the key. Meant for many short
/// messages. For 128 bytes keyed_hash() takes eight times as long (docs/notes/wire.md).
using ShortDigest = std::array<std::byte, 16>;
ShortDigest short_keyed_hash(const Key& key, ByteView bytes);

/// Compares in a time that does not depend on where the views differ. Views of different sizes are
/// never equal.
bool equal_in_constant_time(ByteView a, ByteView b);

void wipe(std::span<std::byte> bytes);

}  // namespace oriel::boot
