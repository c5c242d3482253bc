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

constexpr std::size_t kWqesMost = 64;  // WQEs in progress at a time
constexpr std::size_t kWqebb = 64;     // bytes

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
  while (halted_at_ == kNone && read_ < end_ && wqes_.size() < kWqesMost) {
    WorkReader::Wqe wqe = reader_.read(read_, end_);
    read_ += wqe.work.wqebbs;
    if (setup_.aliases != nullptr) {
      wqe.work.lkey = setup_.aliases->local(wqe.work.lkey);
      wqe.work.rkey = setup_.aliases->remote(wqe.work.rkey);
    }
    PostedWqe& made = wqes_.emplace_back();
    made.serial = first_serial_ + wqes_.size() - 1;
    made.work = std::move(wqe.work);
    if (wqe.syndrome != Syndrome::none) stop_at(made, wqe.syndrome, wqe.complaint);
    any = true;
  }
  return any;
}

// Adds a probe, which takes no WQEBB of the ring. The NIC adds it itself: producers on a GPU keep
// their indexes where no host thread may access them.
void PostedWqes::add_probe() {
  PostedWqe& made = wqes_.emplace_back();
  made.serial = first_serial_ + wqes_.size() - 1;
  made.work.kind = WorkKind::write;
  made.work.opcode = kProbeOpcode;
  made.work.index = read_;
  made.work.wqebbs = 0;
  made.work.is_inline = true;
}

PostedWqe* PostedWqes::sending() {
  if (next_ >= wqes_.size()) return nullptr;
  PostedWqe& wqe = wqes_[next_];
  return wqe.started || wqe.serial < halted_at_ ? &wqe : nullptr;
}

void PostedWqes::begin(PostedWqe& wqe) {
  wqe.started = true;
  if (wqe.waits_for_data()) ++reads_in_flight_;
}

void PostedWqes::end_piece(PostedWqe& wqe) {
  if (++wqe.answered < wqe.pieces) return;
  if (wqe.waits_for_data()) --reads_in_flight_;
  wqe.done = true;
}

void PostedWqes::stop_at(PostedWqe& wqe, Syndrome syndrome, Complaint complaint) {
  if (wqe.done) return;
  const bool is_gone = syndrome == Syndrome::remote_gone;
  wqe.syndrome = is_gone ? Syndrome::remote_access : syndrome;
  wqe.complaint = is_gone ? Complaint::deregistered : complaint;
  wqe.done = true;
  halted_at_ = std::min(halted_at_, wqe.serial);
}

PostedWqe PostedWqes::complete_oldest() {
  PostedWqe wqe = std::move(wqes_.front());
  poison(wqe.work);
  completed_ = wqe.work.index + wqe.work.wqebbs;
  wqes_.pop_front();
  ++first_serial_;
  if (next_ > 0) --next_;
  return wqe;
}

void PostedWqes::fail_oldest() {
  const WorkRequest& work = wqes_.front().work;
  completed_ = work.index + work.wqebbs;
}

WorkRequest PostedWqes::skip() {
  WorkRequest work = reader_.read(completed_, end_).work;
  completed_ += work.wqebbs;
  return work;
}

void PostedWqes::poison(const WorkRequest& work) {
  for (std::uint64_t i = work.index; i < work.index + work.wqebbs; ++i) {
    std::memset(setup_.memory.ring + (i & (setup_.memory.depth - 1)) * kWqebb, 0xdd, kWqebb);
  }
}

}  // namespace oriel::net
