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

KernelEntry copy_lines_for(const AllReduceArguments& arguments) {
  const RankVariant ranks = variant_for(arguments.ranks);
  const bool in_words = has_word_blocks(arguments);
  const std::size_t kind =
      (arguments.collective == Collective::all_to_all ? 2 : 0) + (in_words ? 1 : 0);
  return {kFirstCopyLines + kind * kRankVariants + static_cast<std::size_t>(ranks),
          detail::copy_lines_kernel_for(arguments.collective, ranks, in_words)};
}

KernelEntry kernel_for(const Plan& plan, const AllReduceArguments& arguments) {
  // An empty call of any collective is a one-shot all-reduce without CTAs that move data.
  const bool copies = !reduces(arguments.collective) && plan.ctas > 0;
  if (copies && plan.algorithm == Algorithm::one_shot) return copy_lines_for(arguments);
  if (copies) {
    return {kFirstCopyStream + static_cast<std::size_t>(arguments.collective),
            detail::copy_stream_kernel_for(arguments.collective)};
  }
  const auto type = static_cast<std::size_t>(arguments.type);
  const auto algorithm = static_cast<std::size_t>(plan.algorithm);
  const auto family = static_cast<std::size_t>(family_of(arguments.op));
  const auto variant = static_cast<std::size_t>(variant_for(arguments.ranks));
  return {type * kVariantsOfType + (algorithm * 3 + family) * kRankVariants + variant,
          kernels_for(arguments.type).kernel[algorithm][family][variant]};
}

KernelEntry hierarchy_for(DataType type) {
  return {kFirstHierarchy + static_cast<std::size_t>(type), kernels_for(type).hierarchy};
}

KernelEntry exchange_for(ExchangeForm form) {
  return {kFirstExchange + static_cast<std::size_t>(form), detail::exchange_kernel_for(form)};
}

struct Grid {
  unsigned ctas = 1;
  unsigned threads = kMaxThreads;  ///< of a sub-CTA
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

/// Loads the kernel if necessary. `what` returns its name for the error message.
template <class What>
Status load(KernelEntry kernel, LoadedKernels& kernels, const What& what) {
  auto loaded = kernels.get(kernel);
  if (loaded.ok()) return {};
  return std::move(loaded).error().with_context("loading " + what());
}

}  // namespace

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
  const CUresult status =
      launch(kernel, {.ctas = static_cast<unsigned>(arguments.ctas)}, arguments, on);
  if (status == CUDA_SUCCESS) return {};
  return cuda_error(fmt::format("launching an exchange of {} messages with {} x {} threads",
                                arguments.messages, arguments.ctas, kMaxThreads),
                    status);
}

Status load_exchanges(LoadedKernels& kernels) {
  for (const ExchangeForm form : {ExchangeForm::any, ExchangeForm::near, ExchangeForm::packets}) {
    ORIEL_CHECK(load(exchange_for(form), kernels, [] { return std::string("exchanges"); }));
  }
  return {};
}

Status load_hierarchy(const HierarchyArguments& arguments, LoadedKernels& kernels) {
  return load(hierarchy_for(arguments.type), kernels, [&] {
    return fmt::format("collectives of {} among teams", name_of(arguments.type));
  });
}

Status load_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                       LoadedKernels& kernels) {
  return load(kernel_for(plan, arguments), kernels, [&] {
    return fmt::format("{} of {}", name_of(plan.algorithm), name_of(arguments.type));
  });
}

}  // namespace oriel::kernels
