// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/memory_keys.hpp"

#include <set>
#include <vector>

#include <catch2/catch.hpp>

using namespace oriel;
using namespace oriel::net;

namespace {

struct Fixture {
  MemoryKeys keys;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  MemoryRange range{0x7000'0000'0000, 4096, memory.data(),
                    kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic};
};

}  // namespace

TEST_CASE_METHOD(Fixture, "a key is good for its whole range and not one byte more", "[req:3.8]") {
  const std::uint32_t key = keys.add(range).value();
  const std::uint64_t at = range.address;
  CHECK(keys.find_local(key, at, 4096, true).memory == memory.data());
  CHECK(keys.find_local(key, at + 4095, 1, false).memory == memory.data() + 4095);
  CHECK(keys.find_remote(key, at + 8, 8, kRemoteAtomic).memory == memory.data() + 8);
  CHECK(keys.find_local(key, at, 4097, false).syndrome == Syndrome::local_protection);
  CHECK(keys.find_local(key, at - 1, 2, false).syndrome == Syndrome::local_protection);
  CHECK(keys.find_remote(key, at + 4096, 1, kRemoteRead).syndrome == Syndrome::remote_access);
  CHECK(keys.find_remote(key, at + 1, ~std::uint64_t{0}, kRemoteRead).syndrome ==
        Syndrome::remote_access);
  CHECK(keys.find_remote(key, ~std::uint64_t{0}, 2, kRemoteRead).syndrome ==
        Syndrome::remote_access);
  // Zero bytes need no protection.
  CHECK(keys.find_local(0, 0, 0, true).syndrome == Syndrome::none);
  CHECK(keys.find_remote(0, 0, 0, kRemoteWrite).syndrome == Syndrome::none);
}

TEST_CASE_METHOD(Fixture, "each right has to be granted", "[req:3.8]") {
  range.access = 0;
  const std::uint32_t mine = keys.add(range).value();
  CHECK(keys.find_local(mine, range.address, 8, false).syndrome == Syndrome::none);
  CHECK(keys.find_local(mine, range.address, 8, true).syndrome == Syndrome::local_protection);
  for (const Access right : {kRemoteWrite, kRemoteRead, kRemoteAtomic}) {
    CHECK(keys.find_remote(mine, range.address, 8, right).syndrome == Syndrome::remote_access);
    range.access = static_cast<std::uint8_t>(right | kLocalWrite);
    const std::uint32_t key = keys.add(range).value();
    for (const Access asked : {kRemoteWrite, kRemoteRead, kRemoteAtomic}) {
      CHECK((keys.find_remote(key, range.address, 8, asked).syndrome == Syndrome::none) ==
            (asked == right));
    }
  }
  range.access = kRemoteWrite;
  CHECK(keys.add(range).error().code() == ErrorCode::invalid_argument);
  range.access = 0x10;
  CHECK_FALSE(keys.add(range).ok());
}

TEST_CASE_METHOD(Fixture, "key 0, unknown and deregistered keys are refused", "[req:3.8]") {
  const std::uint32_t key = keys.add(range).value();
  CHECK(keys.find_local(0, range.address, 8, false).syndrome == Syndrome::local_protection);
  CHECK(keys.find_local(key + 1, range.address, 8, false).syndrome == Syndrome::local_protection);
  REQUIRE(keys.remove(key).ok());
  CHECK_FALSE(keys.remove(key).ok());
  CHECK(keys.find_local(key, range.address, 8, false).syndrome == Syndrome::local_protection);
  // Blames the owner of the key, not the peer that still uses it.
  CHECK(keys.find_remote(key, range.address, 8, kRemoteRead).syndrome == Syndrome::remote_gone);
  for (const std::uint32_t never : {key + 1, key - 1, 0u, key + 0x9e3779b1u, key - 0x9e3779b1u}) {
    CHECK(keys.find_remote(never, range.address, 8, kRemoteRead).syndrome ==
          Syndrome::remote_access);
  }
}

TEST_CASE_METHOD(Fixture, "a deregistered key is not used again within 200,000 registrations",
                 "[req:3.8]") {
  std::set<std::uint32_t> seen{0};
  for (int i = 0; i < 200'000; ++i) {
    const std::uint32_t key = keys.add(range).value();
    REQUIRE(seen.insert(key).second);
    REQUIRE(keys.remove(key).ok());
  }
}

TEST_CASE_METHOD(Fixture, "an empty, null or overflowing memory range cannot be registered",
                 "[req:3.8]") {
  MemoryRange bad = range;
  bad.bytes = 0;
  CHECK_FALSE(keys.add(bad).ok());
  bad = range;
  bad.memory = nullptr;
  CHECK_FALSE(keys.add(bad).ok());
  bad = range;
  bad.address = ~std::uint64_t{0} - 100;
  CHECK_FALSE(keys.add(bad).ok());
}
