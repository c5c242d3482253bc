// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/call_record.hpp"

#include <cstddef>
#include <cstdint>
#include <set>

#include <catch2/catch.hpp>

#include "kernels/algorithms/eager.hpp"

namespace oriel::kernels {

TEST_CASE("the flags of calls of one count differ by type and operation", "[req:1.38]") {
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{37},
                                    std::uint64_t{7000}, std::uint64_t{1} << 40}) {
    INFO("count " << count);
    std::set<std::uint32_t> seen;
    for (int type = 0; type < kDataTypeCount; ++type) {
      for (int op = 0; op < kReduceOpCount; ++op) {
        seen.insert(all_reduce_signature(static_cast<DataType>(type), static_cast<ReduceOp>(op),
                                         count, Algorithm::eager) >>
                    (kSignatureBits - kEagerSignatureBits));
      }
    }
    CHECK(seen.size() == std::size_t{kDataTypeCount} * kReduceOpCount);
  }
}

TEST_CASE("a record of a call is read as it was written, and not while it is written",
          "[req:1.38]") {
  CallRecord record{};
  CHECK_FALSE(read_call(record));
  const CollectiveCall first{Collective::reduce_scatter, DataType::e5m2, ReduceOp::premul_sum, 7};
  record_call(record, first);
  record_call(record, first);
  const auto read = read_call(record);
  REQUIRE(read);
  CHECK(read->number == 2);
  CHECK(read->call == first);
  CHECK_FALSE(read->call == CollectiveCall{first.collective, first.type, ReduceOp::sum, 7});
  ++record.version;
  CHECK_FALSE(read_call(record));
  const CollectiveCall gather{Collective::all_gather, DataType::u8, ReduceOp::sum, 1};
  CHECK(gather == CollectiveCall{Collective::all_gather, DataType::u8, ReduceOp::max, 1});
}

}  // namespace oriel::kernels
