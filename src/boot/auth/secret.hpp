// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/bytes.hpp"

/// The cryptographic primitives that set-up needs, all libsodium's: random bytes, BLAKE2b with a
/// key, comparison in constant time, wiping. Everything here may be called from any thread and
/// cannot fail: without a source of randomness libsodium ends the process, as it must.
namespace oriel::boot {

/// What a key is for. Each purpose has a key of its own, so that a proof made for one is worthless
/// for another.
enum class KeyPurpose : std::uint16_t {
  rendezvous = 1,   ///< a rank and the root service
  link = 2,         ///< two ranks, over TCP
  fd_exchange = 3,  ///< two ranks of a node, over unix sockets
  wire = 4,         ///< messages between NICs, each of which carries a proof
  split = 5,        ///< secrets of the communicators into which this one is split
};

using Digest = std::array<std::byte, 32>;

/// 32 secret bytes, wiped when destroyed.
class Key {
 public:
  static constexpr std::size_t kBytes = 32;

  Key() = default;  ///< all zero; a place to put a key in
  explicit Key(std::span<const std::byte, kBytes> bytes);
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();

  static Key random();
  /// The key for `purpose` of the communicator number `realm`, from its secret.
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

/// Keyed BLAKE2b over the parts, each prefixed by its length so that no two lists hash alike.
Digest keyed_hash(const Key& key, std::initializer_list<ByteView> parts);
/// The same without a key: a check of integrity, not a proof.
Digest plain_hash(ByteView bytes);

/// Keyed SipHash-2-4 of 16 bytes, with the key's first half: for many short messages, where the
/// hash above takes seven times as long.
using ShortDigest = std::array<std::byte, 16>;
ShortDigest short_keyed_hash(const Key& key, ByteView bytes);

/// Takes the same time wherever the difference is. Views of different size are never equal.
bool equal_in_constant_time(ByteView a, ByteView b);

void wipe(std::span<std::byte> bytes);

}  // namespace oriel::boot
