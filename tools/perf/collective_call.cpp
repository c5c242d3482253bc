// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/collective_call.hpp"

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::perf {

bool CollectiveCall::is_present() const {
  const CollectiveTable& table = library_.collectives;
  switch (collective_) {
    case Collective::all_reduce:
      return true;
    case Collective::all_gather:
      return table.all_gather != nullptr;
    case Collective::reduce_scatter:
      return table.reduce_scatter != nullptr;
    case Collective::reduce:
      return table.reduce != nullptr;
    case Collective::broadcast:
      return table.broadcast != nullptr;
    case Collective::all_to_all:
      return table.all_to_all != nullptr;
    case Collective::gather:
      return table.gather != nullptr;
    case Collective::scatter:
      return table.scatter != nullptr;
    default:  // kSendReceive
      return table.send && table.receive && table.group_start && table.group_end;
  }
}

Status CollectiveCall::check_present() const {
  if (is_present()) return {};
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} has no {}", library_.path, table_name(collective_)));
}

bool CollectiveCall::has_output() const {
  const bool is_for_root = collective_ == Collective::reduce || collective_ == Collective::gather;
  return !is_for_root || place_.rank == root_;
}

int CollectiveCall::source_of(int block) const {
  if (receives_blocks(collective_)) return block;
  if (has_root(collective_)) return root_;
  return (place_.rank + place_.ranks - 1) % place_.ranks;
}

Status CollectiveCall::make(const CallArguments& call) const {
  const CollectiveTable& table = library_.collectives;
  if (collective_ == kSendReceive) return send_and_receive(call);
  switch (collective_) {
    case Collective::all_reduce:
      return library_.check(library_.all_reduce(call.input, call.output, call.count, call.type,
                                                call.op, call.comm, call.stream),
                            "ncclAllReduce", call.comm);
    case Collective::all_gather:
      return library_.check(
          table.all_gather(call.input, call.output, call.count, call.type, call.comm, call.stream),
          "ncclAllGather", call.comm);
    case Collective::reduce_scatter:
      return library_.check(table.reduce_scatter(call.input, call.output, call.count, call.type,
                                                 call.op, call.comm, call.stream),
                            "ncclReduceScatter", call.comm);
    case Collective::all_to_all:
      return library_.check(
          table.all_to_all(call.input, call.output, call.count, call.type, call.comm, call.stream),
          "ncclAlltoAll", call.comm);
    default:
      return make_rooted(call);
  }
}

Status CollectiveCall::make_rooted(const CallArguments& call) const {
  const CollectiveTable& table = library_.collectives;
  switch (collective_) {
    case Collective::reduce:
      return library_.check(table.reduce(call.input, call.output, call.count, call.type, call.op,
                                         root_, call.comm, call.stream),
                            "ncclReduce", call.comm);
    case Collective::gather:
      return library_.check(table.gather(call.input, call.output, call.count, call.type, root_,
                                         call.comm, call.stream),
                            "ncclGather", call.comm);
    case Collective::scatter:
      return library_.check(table.scatter(call.input, call.output, call.count, call.type, root_,
                                          call.comm, call.stream),
                            "ncclScatter", call.comm);
    default:
      return library_.check(table.broadcast(call.input, call.output, call.count, call.type, root_,
                                            call.comm, call.stream),
                            "ncclBroadcast", call.comm);
  }
}

Status CollectiveCall::send_and_receive(const CallArguments& call) const {
  const CollectiveTable& table = library_.collectives;
  const int next = (place_.rank + 1) % place_.ranks;
  ORIEL_CHECK(library_.check(table.group_start(), "ncclGroupStart", call.comm));
  ORIEL_CHECK(
      library_.check(table.send(call.input, call.count, call.type, next, call.comm, call.stream),
                     "ncclSend", call.comm));
  ORIEL_CHECK(library_.check(
      table.receive(call.output, call.count, call.type, source_of(0), call.comm, call.stream),
      "ncclRecv", call.comm));
  return library_.check(table.group_end(), "ncclGroupEnd", call.comm);
}

}  // namespace oriel::perf
