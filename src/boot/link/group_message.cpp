// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/group_message.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

const char* name(GroupProtocol protocol) {
  switch (protocol) {
    case GroupProtocol::all_gather:
      return "all-gather";
    case GroupProtocol::broadcast:
      return "broadcast";
    case GroupProtocol::barrier:
      return "barrier";
    case GroupProtocol::agree:
      return "agreement";
  }
  return "unknown collective";
}

std::string describe(const GroupHeader& header, const GroupHeader& other) {
  std::string text = fmt::format("{} #{}", to_string(header.operation), header.sequence);
  if (header.operation == other.operation && header.sequence == other.sequence) {
    text += fmt::format(" ({}, step {}, group {:08x})", name(header.protocol), header.round,
                        header.group);
  }
  return text;
}

}  // namespace

std::string to_string(Operation operation) {
  switch (operation) {
    case Operation::join:
      return "join";
    case Operation::topology:
      return "topology";
    case Operation::control_window:
      return "control_window";
    case Operation::window_register:
      return "window_register";
    case Operation::table:
      return "table";
    case Operation::network:
      return "network";
    case Operation::split:
      return "split";
    case Operation::test:
      return "test";
  }
  return fmt::format("operation {}", static_cast<int>(operation));
}

void GroupHeader::encode(ByteWriter& writer) const {
  writer.put(operation).put(protocol).put(round);
  writer.put(sequence).put(group);
}

GroupHeader GroupHeader::decode(ByteReader& reader) {
  GroupHeader header;
  header.operation = static_cast<Operation>(reader.get<std::uint16_t>());
  header.protocol = static_cast<GroupProtocol>(reader.get<std::uint8_t>());
  header.round = reader.get<std::uint8_t>();
  header.sequence = reader.get<std::uint32_t>();
  header.group = reader.get<std::uint32_t>();
  return header;
}

std::uint32_t hash_members(std::span<const int> members) {
  std::uint32_t value = 2166136261U;  // FNV-1a
  for (const int member : members) {
    value = (value ^ static_cast<std::uint32_t>(member)) * 16777619U;
  }
  return value;
}

Result<ByteView> open_group_message(ByteView message, const GroupHeader& due, int own, int sender) {
  ByteReader reader(message);
  const GroupHeader theirs = GroupHeader::decode(reader);
  if (!reader.good()) {
    return Error(ErrorCode::remote, fmt::format("rank {} sent a message of {} bytes, "
                                                "shorter than its header",
                                                sender, message.size()));
  }
  if (theirs != due) {
    const auto here = std::pair(own, describe(due, theirs));
    const auto there = std::pair(sender, describe(theirs, due));
    const auto& [low, high] = std::minmax(here, there);
    return Error(ErrorCode::invalid_usage,
                 fmt::format("rank {} is in {} while rank {} is in {}", low.first, low.second,
                             high.first, high.second))
        .with_hint("call the same collective functions in the same order on every rank");
  }
  return message.subspan(GroupHeader::kBytes);
}

void put_blocks(ByteWriter& writer, std::span<const Bytes> blocks) {
  for (const Bytes& block : blocks) writer.put_blob(block);
}

Status take_blocks(ByteView body, std::size_t count, std::vector<Bytes>& blocks) {
  ByteReader reader(body);
  for (std::size_t i = 0; i < count; ++i) {
    const ByteView block = reader.get_blob();
    blocks.emplace_back(block.begin(), block.end());
  }
  return reader.finish("all-gather");
}

Status check_barrier_body(ByteView body) {
  if (body.empty()) return {};
  return Error(ErrorCode::remote,
               fmt::format("a barrier message carries {} bytes, not 0", body.size()));
}

}  // namespace oriel::boot
