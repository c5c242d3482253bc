// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/posted_wqes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/alignment.hpp"
#include "net/queue/key_aliases.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kEntriesMost = 64;  // entries in progress at a time
constexpr std::size_t kBlock = 64;

}  // namespace

void PostedWqe::cut(std::uint32_t bytes) {
  piece_bytes = bytes;
  const std::uint64_t left = work.bytes - sent_bytes;
  pieces = sent + static_cast<std::uint32_t>(divide_up(left, bytes));
  pieces = std::max(pieces, 1u);
}

PostedWqes::PostedWqes(const QueueSetup& setup, std::uint32_t name)
    : setup_(setup),
      reader_(setup.memory.ring, setup.memory.depth, name),
      end_(setup.first_index),
      read_(setup.first_index),
      completed_(setup.first_index) {}

bool PostedWqes::read() {
  bool any = false;
  while (halted_at_ == kNone && read_ < end_ && entries_.size() < kEntriesMost) {
    WorkReader::Wqe entry = reader_.read(read_, end_);
    read_ += entry.work.blocks;
    if (setup_.aliases != nullptr) {
      entry.work.lkey = setup_.aliases->local(entry.work.lkey);
      entry.work.rkey = setup_.aliases->remote(entry.work.rkey);
    }
    PostedWqe& made = entries_.emplace_back();
    made.serial = first_serial_ + entries_.size() - 1;
    made.work = std::move(entry.work);
    if (entry.syndrome != Syndrome::none) stop_at(made, entry.syndrome, entry.complaint);
    any = true;
  }
  return any;
}

// Adds a probe, which takes no WQEBB of the ring. The NIC adds it itself: producers on a GPU keep
// their indexes where no host thread may access them.
void PostedWqes::add_probe() {
  PostedWqe& made = entries_.emplace_back();
  made.serial = first_serial_ + entries_.size() - 1;
  made.work.kind = WorkKind::write;
  made.work.opcode = kProbeOpcode;
  made.work.index = read_;
  made.work.blocks = 0;
  made.work.is_inline = true;
}

PostedWqe* PostedWqes::sending() {
  if (next_ >= entries_.size()) return nullptr;
  PostedWqe& entry = entries_[next_];
  return entry.started || entry.serial < halted_at_ ? &entry : nullptr;
}

void PostedWqes::begin(PostedWqe& entry) {
  entry.started = true;
  if (entry.waits_for_data()) ++reads_in_flight_;
}

void PostedWqes::end_piece(PostedWqe& entry) {
  if (++entry.answered < entry.pieces) return;
  if (entry.waits_for_data()) --reads_in_flight_;
  entry.done = true;
}

void PostedWqes::stop_at(PostedWqe& entry, Syndrome syndrome, Complaint complaint) {
  if (entry.done) return;
  const bool is_gone = syndrome == Syndrome::remote_gone;
  entry.syndrome = is_gone ? Syndrome::remote_access : syndrome;
  entry.complaint = is_gone ? Complaint::deregistered : complaint;
  entry.done = true;
  halted_at_ = std::min(halted_at_, entry.serial);
}

PostedWqe PostedWqes::complete_oldest() {
  PostedWqe entry = std::move(entries_.front());
  poison(entry.work);
  completed_ = entry.work.index + entry.work.blocks;
  entries_.pop_front();
  ++first_serial_;
  if (next_ > 0) --next_;
  return entry;
}

void PostedWqes::fail_oldest() {
  const WorkRequest& work = entries_.front().work;
  completed_ = work.index + work.blocks;
}

WorkRequest PostedWqes::skip() {
  WorkRequest work = reader_.read(completed_, end_).work;
  completed_ += work.blocks;
  return work;
}

void PostedWqes::poison(const WorkRequest& work) {
  for (std::uint64_t i = work.index; i < work.index + work.blocks; ++i) {
    std::memset(setup_.memory.ring + (i & (setup_.memory.depth - 1)) * kBlock, 0xdd, kBlock);
  }
}

}  // namespace oriel::net
