// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/secret.hpp"

#include <algorithm>

#include <sodium.h>

namespace oriel::boot {
namespace {

// Initialises libsodium, which selects the fastest code for this CPU. Repeated and concurrent calls
// are allowed.
void ensure_ready() {
  static const int status = sodium_init();
  static_cast<void>(status);
}

const unsigned char* raw(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Key::Key(std::span<const std::byte, kBytes> bytes) {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Key::~Key() {
  wipe(bytes_);
}

Key Key::random() {
  Key key;
  fill_random(key.bytes_);
  return key;
}

Key Key::derive(const Key& secret, KeyPurpose purpose, std::uint64_t realm) {
  constexpr std::string_view kLabel = "oriel key v1";
  const auto digest =
      keyed_hash(secret, {std::as_bytes(std::span(kLabel)), std::as_bytes(std::span(&purpose, 1)),
                          std::as_bytes(std::span(&realm, 1))});
  return Key(digest);
}

Key Key::derive_child(const Key& parent, std::uint64_t serial, std::int32_t color) {
  constexpr std::string_view kLabel = "oriel split v1";
  const auto digest =
      keyed_hash(parent, {std::as_bytes(std::span(kLabel)), std::as_bytes(std::span(&serial, 1)),
                          std::as_bytes(std::span(&color, 1))});
  return Key(digest);
}

void fill_random(std::span<std::byte> out) {
  ensure_ready();
  randombytes_buf(out.data(), out.size());
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

Digest keyed_hash(const Key& key, std::initializer_list<ByteView> parts) {
  ensure_ready();
  Digest digest;
  crypto_generichash_state state;
  crypto_generichash_init(&state, raw(key.bytes()), Key::kBytes, digest.size());
  for (const ByteView part : parts) {
    const std::uint64_t length = part.size();
    crypto_generichash_update(&state, raw(std::as_bytes(std::span(&length, 1))), sizeof length);
    crypto_generichash_update(&state, raw(part), part.size());
  }
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(digest.data()), digest.size());
  sodium_memzero(&state, sizeof state);
  return digest;
}

Digest plain_hash(ByteView bytes) {
  ensure_ready();
  Digest digest;
  crypto_generichash(reinterpret_cast<unsigned char*>(digest.data()), digest.size(), raw(bytes),
                     bytes.size(), nullptr, 0);
  return digest;
}

ShortDigest short_keyed_hash(const Key& key, ByteView bytes) {
  static_assert(crypto_shorthash_siphashx24_KEYBYTES <= Key::kBytes);
  static_assert(crypto_shorthash_siphashx24_BYTES == std::tuple_size_v<ShortDigest>);
  ShortDigest digest;
  crypto_shorthash_siphashx24(reinterpret_cast<unsigned char*>(digest.data()), raw(bytes),
                              bytes.size(), raw(key.bytes()));
  return digest;
}

bool equal_in_constant_time(ByteView a, ByteView b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(std::span<std::byte> bytes) {
  sodium_memzero(bytes.data(), bytes.size());
}

}  // namespace oriel::boot
