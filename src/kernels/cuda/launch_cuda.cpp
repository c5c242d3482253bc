// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch_cuda.hpp"

#include <array>
#include <cstddef>
#include <string>

#include <fmt/format.h>

#include "base/try.hpp"
#include "kernels/algorithms/family.hpp"
#include "kernels/algorithms/one_shot_blocks.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels {
namespace {

const KernelSet& kernels_for(DataType type) {
  static const std::array<KernelSet, kDataTypeCount> sets = {
      detail::kernel_set_i8(),   detail::kernel_set_u8(),   detail::kernel_set_i32(),
      detail::kernel_set_u32(),  detail::kernel_set_i64(),  detail::kernel_set_u64(),
      detail::kernel_set_f16(),  detail::kernel_set_f32(),  detail::kernel_set_f64(),
      detail::kernel_set_bf16(), detail::kernel_set_e4m3(), detail::kernel_set_e5m2()};
  return sets[static_cast<std::size_t>(type)];
}

KernelEntry copy_lines_for(Collective collective, RankVariant ranks, CopyLines lines) {
  std::size_t kind = (lines.in_words ? 1u : 0u) + (lines.escaped ? 2u : 0u);
  if (collective == Collective::all_to_all) kind += 4;
  if (collective == Collective::broadcast) kind += 8;
  return {kFirstCopyLines + kind * kRankVariants + static_cast<std::size_t>(ranks),
          detail::copy_lines_kernel_for(collective, ranks, lines)};
}

KernelEntry copy_stream_for(Collective collective) {
  return {kFirstCopyStream + static_cast<std::size_t>(collective),
          detail::copy_stream_kernel_for(collective)};
}

KernelEntry all_reduce_for(DataType type, std::size_t algorithm, std::size_t family,
                           std::size_t ranks) {
  return {static_cast<std::size_t>(type) * kVariantsOfType +
              (algorithm * kFamilies + family) * kRankVariants + ranks,
          kernels_for(type).kernel[algorithm][family][ranks]};
}

KernelEntry kernel_for(const Plan& plan, const AllReduceArguments& arguments) {
  const RankVariant ranks = variant_for(arguments.ranks);
  // An empty call of any collective is a one-shot all-reduce without CTAs that move data.
  if (!reduces(arguments.collective) && plan.ctas > 0) {
    if (plan.algorithm == Algorithm::stream) return copy_stream_for(arguments.collective);
    const CopyLines lines{has_word_blocks(arguments), plan.escaped_lines};
    return copy_lines_for(arguments.collective, ranks, lines);
  }
  return all_reduce_for(arguments.type, static_cast<std::size_t>(plan.algorithm),
                        static_cast<std::size_t>(family_of(arguments.op)),
                        static_cast<std::size_t>(ranks));
}

KernelEntry hierarchy_for(DataType type) {
  return {kFirstHierarchy + static_cast<std::size_t>(type), kernels_for(type).hierarchy};
}

KernelEntry exchange_for(ExchangeForm form) {
  return {kFirstExchange + static_cast<std::size_t>(form), detail::exchange_kernel_for(form)};
}

struct Grid {
  unsigned ctas = 1;
  unsigned threads = kMaxThreads;  ///< threads per sub-CTA
  unsigned sub_ctas = 1;
  bool may_overlap = true;  ///< may start before its predecessor ends
};

/// Launches a kernel whose only parameter is `arguments`.
template <class Arguments>
CUresult launch(CUfunction kernel, const Grid& grid, const Arguments& arguments, StreamScope& on) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = grid.ctas;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = grid.threads;
  config.blockDimY = grid.sub_ctas;
  config.blockDimZ = 1;
  config.hStream = on.stream();
  config.attrs = &attribute;
  config.numAttrs = grid.may_overlap ? 1 : 0;
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  return on.call([&] { return cuda().launch_kernel_ex(&config, kernel, parameters, nullptr); });
}

/// Calls `action` with each kernel, with some of them under several numbers.
template <class Action>
Status for_each_kernel(const Action& action) {
  for (std::size_t i = 0; i < kDataTypeCount; ++i) {
    const auto type = static_cast<DataType>(i);
    for (std::size_t k = 0; k < kVariantsOfType; ++k) {
      const std::size_t family = k / kRankVariants % kFamilies;
      const std::size_t algorithm = k / kRankVariants / kFamilies;
      ORIEL_CHECK(action(all_reduce_for(type, algorithm, family, k % kRankVariants)));
    }
    ORIEL_CHECK(action(hierarchy_for(type)));
  }
  for (std::size_t form = 0; form < kExchangeForms; ++form) {
    ORIEL_CHECK(action(exchange_for(static_cast<ExchangeForm>(form))));
  }
  for (const Collective collective :
       {Collective::broadcast, Collective::all_gather, Collective::all_to_all}) {
    ORIEL_CHECK(action(copy_stream_for(collective)));
    for (std::size_t k = 0; k < 4 * kRankVariants; ++k) {
      const auto ranks = static_cast<RankVariant>(k / 4);
      ORIEL_CHECK(action(copy_lines_for(collective, ranks, {k % 2 != 0, k / 2 % 2 != 0})));
    }
  }
  return {};
}

}  // namespace

Status load_kernels(LoadedKernels& kernels) {
  return for_each_kernel([&](KernelEntry kernel) {
    auto loaded = kernels.get(kernel);
    if (loaded.ok()) return Status();
    return Status(std::move(loaded).error().with_context("loading the kernels"));
  });
}

Status launch_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                         LoadedKernels& kernels, StreamScope& on) {
  ORIEL_TRY(CUfunction const kernel, kernels.get(kernel_for(plan, arguments)));
  const auto sub_ctas = static_cast<unsigned>(plan.sub_ctas);
  const Grid grid{.ctas = static_cast<unsigned>(plan.ctas) + kSignatureCtas,
                  .threads = static_cast<unsigned>(plan.threads) / sub_ctas,
                  .sub_ctas = sub_ctas};
  const CUresult status = launch(kernel, grid, arguments, on);
  if (status == CUDA_SUCCESS) return {};
  return cuda_error(fmt::format("launching {} of {} with {} x {} threads", name_of(plan.algorithm),
                                name_of(arguments.type), plan.ctas, plan.threads),
                    status);
}

Status launch_hierarchy(const HierarchyArguments& arguments, LoadedKernels& kernels,
                        StreamScope& on) {
  ORIEL_TRY(CUfunction const kernel, kernels.get(hierarchy_for(arguments.type)));
  const Grid grid{.ctas = static_cast<unsigned>(arguments.plan.ctas), .may_overlap = false};
  const CUresult status = launch(kernel, grid, arguments, on);
  if (status == CUDA_SUCCESS) return {};
  return cuda_error(fmt::format("launching an {} of {} among teams with {} x {} threads",
                                name_of(arguments.collective), name_of(arguments.type),
                                arguments.plan.ctas, kMaxThreads),
                    status);
}

Status launch_exchange(const ExchangeArguments& arguments, LoadedKernels& kernels,
                       StreamScope& on) {
  ORIEL_TRY(CUfunction const kernel, kernels.get(exchange_for(arguments.form)));
  const auto warps = static_cast<unsigned>(arguments.stream_warps);
  const Grid grid{.ctas = static_cast<unsigned>(arguments.ctas),
                  .threads = 32 * warps,
                  .sub_ctas = kMaxWarps / warps};
  const CUresult status = launch(kernel, grid, arguments, on);
  if (status == CUDA_SUCCESS) return {};
  return cuda_error(fmt::format("launching an exchange of {} messages with {} x {} threads",
                                arguments.messages, arguments.ctas, kMaxThreads),
                    status);
}

}  // namespace oriel::kernels
