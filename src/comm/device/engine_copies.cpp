// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/engine_copies.hpp"

#include <cstddef>

#include "base/try.hpp"

namespace oriel::comm {
namespace {

Status copy_on(CUstream stream, const kernels::LocalCopy& copy, StreamScope& on) {
  const auto from = reinterpret_cast<CUdeviceptr>(copy.from);
  const auto to = reinterpret_cast<CUdeviceptr>(copy.to);
  return cuda_status("copying a block of a collective",
                     on.call([&] { return cuda().memcpy_async(to, from, copy.bytes, stream); }));
}

/// Makes `stream` wait for the work in `other`.
Status follow(CUstream stream, CUstream other, CUevent event, StreamScope& on) {
  const char* const what = "ordering the copies of a collective";
  ORIEL_CHECK(cuda_status(what, on.call([&] { return cuda().event_record(event, other); })));
  return cuda_status(what, on.call([&] {
    return cuda().stream_wait_event(stream, event, CU_EVENT_WAIT_DEFAULT);
  }));
}

}  // namespace

Result<std::unique_ptr<EngineCopies>> EngineCopies::make() {
  std::unique_ptr<EngineCopies> made(new EngineCopies);
  ORIEL_CHECK(cuda_status("creating a stream for copies",
                          cuda().stream_create(&made->second_, CU_STREAM_NON_BLOCKING)));
  ORIEL_CHECK(cuda_status("creating an event for copies",
                          cuda().event_create(&made->meeting_, CU_EVENT_DISABLE_TIMING)));
  return made;
}

EngineCopies::~EngineCopies() {
  // Enqueued work still completes after this.
  if (meeting_ != nullptr) static_cast<void>(cuda().event_destroy(meeting_));
  if (second_ != nullptr) static_cast<void>(cuda().stream_destroy(second_));
}

Status EngineCopies::enqueue(const std::vector<kernels::LocalCopy>& copies, bool beside,
                             StreamScope& on) {
  const std::size_t in_turn = copies.size() - (beside && copies.size() > 1 ? 1 : 0);
  const bool uses_second = in_turn < copies.size();
  if (uses_second) ORIEL_CHECK(follow(second_, on.stream(), meeting_, on));
  Status copied = uses_second ? copy_on(second_, copies.back(), on) : Status();
  for (std::size_t i = 0; i < in_turn && copied.ok(); ++i) {
    copied = copy_on(on.stream(), copies[i], on);
  }
  if (!uses_second) return copied;
  // Joins the streams also after a failed copy, since earlier copies run.
  const Status met = follow(on.stream(), second_, meeting_, on);
  return copied.ok() ? met : copied;
}

}  // namespace oriel::comm
