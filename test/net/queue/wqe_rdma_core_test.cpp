// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <catch2/catch.hpp>

#include "net/queue/golden_wqes.hpp"

// Compares the hand-written vectors with rdma-core's own functions and structures (3.12). rdma-core
// has no masked atomics and no dump. Without its header the test is skipped.
#if defined(ORIEL_HAVE_MLX5DV)
#include <endian.h>
#include <infiniband/mlx5dv.h>

namespace golden = oriel::net::golden;

namespace {

class Writer {
 public:
  Writer& control(std::uint8_t opcode, std::uint8_t flags, std::uint8_t parts,
                  std::uint32_t immediate = 0) {
    mlx5_wqe_ctrl_seg segment{};
    mlx5dv_set_ctrl_seg(&segment, static_cast<std::uint16_t>(golden::kIndex), opcode, 0,
                        golden::kQueue, flags, parts, 0, htobe32(immediate));
    return put(segment);
  }
  Writer& remote() {
    mlx5_wqe_raddr_seg segment{};
    segment.raddr = htobe64(golden::kRemote);
    segment.rkey = htobe32(golden::kRkey);
    return put(segment);
  }
  Writer& local(std::uint32_t count) {
    mlx5_wqe_data_seg segment{};
    mlx5dv_set_data_seg(&segment, count, golden::kLkey, golden::kLocal);
    return put(segment);
  }
  Writer& inline_bytes(std::uint32_t count) {
    mlx5_wqe_inl_data_seg segment{};
    segment.byte_count = htobe32(count | MLX5_INLINE_SEG);
    put(segment);
    for (std::uint32_t i = 1; i <= count; ++i) bytes.push_back(static_cast<std::byte>(i));
    while (bytes.size() % 16 != 0) bytes.push_back(std::byte{0});
    return *this;
  }
  Writer& atomic(std::uint64_t swap_or_add, std::uint64_t compare) {
    mlx5_wqe_atomic_seg segment{};
    segment.swap_add = htobe64(swap_or_add);
    segment.compare = htobe64(compare);
    return put(segment);
  }
  std::vector<std::byte> bytes;

 private:
  template <class T>
  Writer& put(const T& segment) {
    const auto* from = reinterpret_cast<const std::byte*>(&segment);
    bytes.insert(bytes.end(), from, from + sizeof segment);
    return *this;
  }
};

constexpr std::uint8_t kSignalled = MLX5_WQE_CTRL_CQ_UPDATE;
constexpr std::uint8_t kFenced = 2 << 5;  // MLX5_WQE_CTRL_FENCE is another mode, 4 << 5

}  // namespace

TEST_CASE("rdma-core writes the same bytes, for what it knows", "[req:3.12]") {
  constexpr std::uint64_t kA = 0xa1a2a3a4a5a6a7a8, kB = 0xb1b2b3b4b5b6b7b8;
  const auto other = [](std::uint8_t opcode, std::uint8_t flags, std::uint8_t parts,
                        std::uint32_t immediate = 0) {
    return Writer().control(opcode, flags, parts, immediate).remote();
  };
  const auto write = [&](std::uint8_t flags, std::uint8_t parts) {
    return other(MLX5_OPCODE_RDMA_WRITE, flags, parts);
  };
  const std::pair<Writer, std::string_view> all[] = {
      {write(kSignalled, 3).local(golden::kBytes), golden::kWrite},
      {other(MLX5_OPCODE_RDMA_WRITE_IMM, kSignalled, 3, 0x5a6b7c8d).local(golden::kBytes),
       golden::kWriteImmediate},
      {other(MLX5_OPCODE_RDMA_READ, kFenced, 3).local(golden::kBytes), golden::kReadFenced},
      {write(kSignalled, 2), golden::kWriteOfNothing},
      {write(0, 3).inline_bytes(1), golden::kInline1},
      {write(kSignalled, 3).inline_bytes(12), golden::kInline12},
      {write(kSignalled, 4).inline_bytes(28), golden::kInline28},
      {write(kSignalled, 9).inline_bytes(100), golden::kInline100},
      {other(MLX5_OPCODE_ATOMIC_CS, kSignalled, 4).atomic(kA, kB).local(8), golden::kCompareSwap},
      {other(MLX5_OPCODE_ATOMIC_FA, kSignalled | kFenced, 4).atomic(kA, 0).local(8),
       golden::kFetchAdd},
      {Writer().control(MLX5_OPCODE_NOP, kSignalled, 1), golden::kNop}};
  for (const auto& [writer, hex] : all) {
    INFO(hex);
    CHECK(writer.bytes == golden::bytes_of(hex));
  }
}
#else
TEST_CASE("rdma-core writes the same bytes, for what it knows", "[req:3.12]") {
  std::puts("skipped: infiniband/mlx5dv.h is not installed (Debian: libibverbs-dev)");
  std::exit(77);
}
#endif
