// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/choice.hpp"

namespace oriel::kernels {
namespace {

// cuda: measured on 2 and 4 NVIDIA H200 joined by NVLink (docs/performance.md); other numbers of
// ranks use the nearest list. The first list of each number is for more CTAs than the default cap
// of
// 32. host: measured on 2 ranks of an AMD EPYC with 2 cores. For more ranks the largest eager
// message is estimated from the cache lines that each rank receives.
constexpr std::string_view kBuiltIn = R"(
cuda 2 4096     one_shot   1 256 0 0 0
cuda 2 16384    one_shot   8 128 0 0 0
cuda 2 32768    one_shot  16 128 0 0 0
cuda 2 65536    one_shot  16 256 0 0 0
cuda 2 131072   one_shot  64 256 0 0 0
cuda 2 524288   one_shot 128 256 0 0 0
cuda 2 2097152  one_shot 128 512 98304 2 1
cuda 2 6291456  two_shot 128 512 98304 2 1
cuda 2 max      stream   128 512 98304 2 1

cuda 2 4096     one_shot   1 256 0 0 0
cuda 2 16384    one_shot   8 128 0 0 0
cuda 2 32768    one_shot  16 128 0 0 0
cuda 2 65536    one_shot  16 256 0 0 0
cuda 2 1482896  one_shot  32 512 65536 3 2
cuda 2 3145728  stream    32 256 65536 2 1
cuda 2 5931632  stream    32 512 65536 2 1
cuda 2 max      stream    32 512 98304 2 1

cuda 4 2048     one_shot   1 256 0 0 0
cuda 4 4096     one_shot   2 128 0 0 0
cuda 4 16384    one_shot   8 128 0 0 0
cuda 4 32768    one_shot  16 128 0 0 0
cuda 4 65536    one_shot  16 256 0 0 0
cuda 4 196608   one_shot  64 256 0 0 0
cuda 4 393216   two_shot  32 256 0 0 0
cuda 4 1572864  two_shot 128 256 20480 3 2
cuda 4 6291456  two_shot 128 512 20480 3 2
cuda 4 12582912 stream   128 512 20480 3 2
cuda 4 max      stream   128 512 32768 2 1

cuda 4 2048     one_shot   1 256 0 0 0
cuda 4 4096     one_shot   2 128 0 0 0
cuda 4 16384    one_shot   8 128 0 0 0
cuda 4 32768    one_shot  16 128 0 0 0
cuda 4 65536    one_shot  16 256 0 0 0
cuda 4 196608   one_shot  32 512 0 0 0
cuda 4 393216   two_shot  32 256 0 0 0
cuda 4 1572864  two_shot  32 512 26112 2 1
cuda 4 12582912 stream    32 256 26112 2 1
cuda 4 max      stream    32 512 26112 2 1

host 1 max      stream     1   1 65536 4 2
host 2 32       one_shot   1   1 0 0 0
host 2 1024     eager      1   1 0 0 0
host 2 max      stream     1   1 65536 4 2
host 4 512      eager      1   1 0 0 0
host 4 max      stream     1   1 65536 4 2
host 16 128     eager      1   1 0 0 0
host 16 max     stream     1   1 32768 4 2
)";

}  // namespace

const ChoiceTable& ChoiceTable::built_in() {
  // Never destroyed: static objects of the application may still call collectives.
  static const auto* const table = new ChoiceTable(parse(kBuiltIn).value());
  return *table;
}

}  // namespace oriel::kernels
