// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/all_reduce_host.hpp"

#include "oriel/device/group.hpp"
#include "oriel/device/scalar.hpp"

#include "kernels/algorithms/one_shot_blocks.hpp"
#include "kernels/algorithms/stream.hpp"
#include "kernels/algorithms/stream_blocks.hpp"
#include "kernels/algorithms/two_shot_broadcast.hpp"
#include "kernels/host/data_ops_host.hpp"
#include "kernels/host/eager_host.hpp"
#include "kernels/loops/float_environment.hpp"
#include "kernels/plan/call_record.hpp"

namespace oriel::kernels {
namespace {

bool run_packets_on_host(Algorithm algorithm, const AllReduceArguments& arguments) {
  const host::FloatEnvironment environment;  // the loops of the other algorithms create their own
  switch (arguments.type) {
    case DataType::i8:
      return detail::run_lines_on_host<std::int8_t>(algorithm, arguments);
    case DataType::u8:
      return detail::run_lines_on_host<std::uint8_t>(algorithm, arguments);
    case DataType::i32:
      return detail::run_lines_on_host<std::int32_t>(algorithm, arguments);
    case DataType::u32:
      return detail::run_lines_on_host<std::uint32_t>(algorithm, arguments);
    case DataType::i64:
      return detail::run_lines_on_host<std::int64_t>(algorithm, arguments);
    case DataType::u64:
      return detail::run_lines_on_host<std::uint64_t>(algorithm, arguments);
    case DataType::f16:
      return detail::run_lines_on_host<device::f16>(algorithm, arguments);
    case DataType::f32:
      return detail::run_lines_on_host<float>(algorithm, arguments);
    case DataType::f64:
      return detail::run_lines_on_host<double>(algorithm, arguments);
    case DataType::bf16:
      return detail::run_lines_on_host<device::bf16>(algorithm, arguments);
    case DataType::e4m3:
      return detail::run_lines_on_host<device::e4m3>(algorithm, arguments);
    case DataType::e5m2:
      return detail::run_lines_on_host<device::e5m2>(algorithm, arguments);
  }
  return false;
}

bool copy_lines_on_host(const AllReduceArguments& arguments) {
  using Thread = device::Thread;
  using Line = FlaggedLine<std::uint8_t>;
  if (arguments.collective == Collective::all_gather) {
    return one_shot_blocks<Line, 0, Collective::all_gather, Thread>(arguments, {});
  }
  return one_shot_blocks<Line, 0, Collective::all_to_all, Thread>(arguments, {});
}

bool stream_copies_on_host(const AllReduceArguments& arguments) {
  using Thread = device::Thread;
  switch (arguments.collective) {
    case Collective::broadcast:
      return StreamAllReduce<Thread, HostCopyOps>(arguments, {}).run();
    case Collective::all_gather:
      return StreamBlocks<Thread, HostCopyOps, Collective::all_gather>(arguments, {}).run();
    case Collective::all_to_all:
      return StreamBlocks<Thread, HostCopyOps, Collective::all_to_all>(arguments, {}).run();
    default:
      return false;
  }
}

CollectiveCall call_of(const AllReduceArguments& arguments) {
  std::uint64_t count = arguments.block != 0 ? arguments.block : arguments.count;
  if (receives_blocks(arguments.collective)) count = arguments.share;
  const std::int32_t root = has_root(arguments.collective) ? arguments.root : 0;
  return {arguments.collective, arguments.type, arguments.op, count, root};
}

}  // namespace

bool run_all_reduce_on_host(Algorithm algorithm, AllReduceArguments arguments) {
  const Places places(arguments, 0);
  const std::uint64_t number = record_call(
      *reinterpret_cast<CallRecord*>(places.scratch(arguments.rank, ScratchLayout::call_record)),
      call_of(arguments));
  arguments.signature = numbered_signature(arguments.signature, number);
  switch (algorithm) {
    case Algorithm::eager:
      return eager_on_host(arguments);
    case Algorithm::one_shot:
      if (!reduces(arguments.collective)) return copy_lines_on_host(arguments);
      return run_packets_on_host(algorithm, arguments);
    case Algorithm::two_shot:
      if (arguments.collective == Collective::broadcast) {
        return two_shot_broadcast<FlaggedLine<std::uint8_t>, 0, device::Thread>(arguments, {});
      }
      return run_packets_on_host(algorithm, arguments);
    case Algorithm::stream:
      if (!reduces(arguments.collective)) return stream_copies_on_host(arguments);
      return StreamAllReduce<device::Thread, HostDataOps>(arguments, GridPlace{}).run();
  }
  return false;
}

}  // namespace oriel::kernels
