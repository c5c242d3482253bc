// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

/// WQEs as bytes, written by hand from the description of the format. They are independent of the
/// code that writes WQEs and of the code that reads them. All are at index 0xabcd of queue
/// 0x012345. The peer's address is 0x1122334455667788 with key 0x99aabbcc. The local address is
/// 0x0102030405060708 with key 0x0a0b0c0d.
namespace oriel::net::golden {

inline constexpr std::uint32_t kQueue = 0x012345;
inline constexpr std::uint64_t kIndex = 0x5'0000'abcd;
inline constexpr std::uint64_t kRemote = 0x1122334455667788;
inline constexpr std::uint32_t kRkey = 0x99aabbcc;
inline constexpr std::uint64_t kLocal = 0x0102030405060708;
inline constexpr std::uint32_t kLkey = 0x0a0b0c0d;
inline constexpr std::uint32_t kBytes = 0x00123456;

// Writes and reads. In the third word, 08 is signalled and 40 is fenced.
inline constexpr std::string_view kWrite =
    "00abcd08 01234503 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "00123456 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kWriteImmediate =
    "00abcd09 01234503 00000008 5a6b7c8d"
    "11223344 55667788 99aabbcc 00000000"
    "00123456 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kReadFenced =
    "00abcd10 01234503 00000040 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "00123456 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kWriteOfNothing =
    "00abcd08 01234502 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000";

// Inline data: 1, 12 and 28 bytes in one WQEBB, 100 in three.
inline constexpr std::string_view kInline1 =
    "00abcd08 01234503 00000000 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "80000001 01000000 00000000 00000000";
inline constexpr std::string_view kInline12 =
    "00abcd08 01234503 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "8000000c 01020304 05060708 090a0b0c";
inline constexpr std::string_view kInline28 =
    "00abcd08 01234504 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "8000001c 01020304 05060708 090a0b0c"
    "0d0e0f10 11121314 15161718 191a1b1c";
inline constexpr std::string_view kInline100 =
    "00abcd08 01234509 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "80000064 01020304 05060708 090a0b0c"
    "0d0e0f10 11121314 15161718 191a1b1c"
    "1d1e1f20 21222324 25262728 292a2b2c"
    "2d2e2f30 31323334 35363738 393a3b3c"
    "3d3e3f40 41424344 45464748 494a4b4c"
    "4d4e4f50 51525354 55565758 595a5b5c"
    "5d5e5f60 61626364 00000000 00000000";

// Atomics of 8 bytes in their plain form.
inline constexpr std::string_view kCompareSwap =
    "00abcd11 01234504 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "a1a2a3a4 a5a6a7a8 b1b2b3b4 b5b6b7b8"
    "00000008 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kFetchAdd =
    "00abcd12 01234504 00000048 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "a1a2a3a4 a5a6a7a8 00000000 00000000"
    "00000008 0a0b0c0d 01020304 05060708";

// Unverified on hardware from here on, except the last. The comparison with rdma-core leaves out
// masked atomics and the dump, and no adapter has run these bytes.
inline constexpr std::string_view kMaskedSwap4 =
    "08abcd14 01234504 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "a1a2a3a4 b1b2b3b4 c1c2c3c4 d1d2d3d4"
    "00000004 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kMaskedSwap8 =
    "09abcd14 01234505 00000000 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "a1a2a3a4 a5a6a7a8 b1b2b3b4 b5b6b7b8"
    "c1c2c3c4 c5c6c7c8 d1d2d3d4 d5d6d7d8"
    "00000008 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kMaskedAdd4 =
    "08abcd15 01234504 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "a1a2a3a4 e1e2e3e4 00000000 00000000"
    "00000004 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kMaskedAdd8 =
    "09abcd15 01234504 00000008 00000000"
    "11223344 55667788 99aabbcc 00000000"
    "a1a2a3a4 a5a6a7a8 e1e2e3e4 e5e6e7e8"
    "00000008 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kDump =
    "00abcd23 01234502 00000048 00000000"
    "00000008 0a0b0c0d 01020304 05060708";
inline constexpr std::string_view kNop = "00abcd00 01234501 00000008 00000000";

/// Returns the bytes that a vector of hex digits encodes.
inline std::vector<std::byte> bytes_of(std::string_view hex) {
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') digits += c;
  }
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::strtoul(digits.substr(i, 2).c_str(), nullptr, 16)));
  }
  return bytes;
}

}  // namespace oriel::net::golden
