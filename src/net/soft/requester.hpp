// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "net/fabric/byte_window.hpp"
#include "net/queue/completion_writer.hpp"
#include "net/queue/work_reader.hpp"
#include "net/soft/nic_context.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// The sending half of a queue: takes entries from the ring in order, asks the peer for what they
/// want, and completes them in order. Requests of several entries are on their way at once, so
/// reads and atomics may be answered after later writes have been done, but for fences.
///
/// Blocks are overwritten with 0xdd before their entry is completed: whoever writes them too late,
/// or reads them again, is found out. Of the first entry that fails all earlier ones are complete;
/// it gets the one completion with its syndrome, and all later ones, rung then or afterwards, get
/// one that says they were flushed. The first-error word is stored before that.
/// Not thread-safe: the NIC's lock guards it. Each call does a bounded amount of work.
class Requester {
 public:
  Requester(const QueueSetup& setup, std::uint32_t number, NicContext& nic);
  ~Requester() { forget_sent(); }
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  void connect(const QueuePeer& peer);
  /// The doorbell has told of everything before `end`.
  void ring(std::uint64_t end) { end_ = end; }
  std::uint64_t end() const { return end_; }
  /// When the peer last answered.
  TimePoint heard() const { return heard_; }
  /// Everything before this is complete.
  std::uint64_t completed() const { return completed_; }
  /// As NicSoft::probe().
  void probe();

  /// While the queue is ready to send, after its doorbell was looked at. Whether anything was done.
  bool progress(TimePoint now);
  void receive(WireResponse& response, TimePoint now);
  /// An entry has failed, or fail() was called: the queue is in error.
  bool failed() const { return failed_; }
  /// Ends the queue for a reason that no entry gives.
  void fail(Syndrome syndrome, Complaint complaint);
  /// While the queue is in error: what is left is flushed.
  bool flush();

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  /// An entry that has been read and is not complete.
  struct Active {
    std::uint64_t serial = 0;
    WorkRequest work;
    Syndrome syndrome = Syndrome::none;
    Complaint complaint = Complaint::none;
    bool begun = false;
    bool done = false;  // answered, or failed
    bool has_time = false;
    bool ended = false;    // a fault that stops the NIC here has done so
    bool direct = false;   // its bytes do not go by the wire
    bool fetched = false;  // the peer's wire fetches them
    std::uint32_t piece_bytes = 0;
    TimePoint not_before{};
    std::vector<std::uint32_t> order;  // of pieces, if not 0, 1, 2 ...
    std::uint32_t pieces = 0;
    std::uint32_t sent = 0;
    std::uint32_t answered = 0;
  };
  /// A request without a response.
  struct Sent {
    std::uint64_t number = 0;
    std::uint64_t serial = 0;  // of the entry
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    bool last = false;  // of the entry's requests
    bool direct = false;
    std::optional<WireSource> source;  // lent to the peer
    bool on_wire = false;
    bool was_sent = false;  // once at least
    bool answered = false;
    std::uint32_t wire_bytes = 0;  // of the window
    std::uint64_t missed = 0;      // timeouts, of which some count kSilent-fold
    std::uint64_t place = 0;       // as of WireMessage
    TimePoint at{};
    std::optional<Loading> load;  // of its payload, until that is on the wire
    bool loaded = false;
  };
  /// Bytes that an answer has brought, or that are to be copied now that it has come.
  struct Landing {
    std::uint64_t serial = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    MemoryPlace place = MemoryPlace::host;
    Storing storing;
    MoveTicket ticket = 0;
    bool begun = false;
  };
  enum class Turn : std::uint8_t { sent, loading, blocked };

  Active& active(std::uint64_t serial) { return active_[serial - first_serial_]; }
  bool fetch();
  bool begin_entries(TimePoint now);
  bool may_begin(Active& entry, TimePoint now);
  bool meets_fault(Active& entry);
  Duration delay_of(std::uint64_t index);
  void begin(Active& entry);
  void stop_at(Active& entry, Syndrome syndrome, Complaint complaint);
  bool send_pieces(Active& entry, TimePoint now);
  std::uint32_t bare_piece_bytes() const;
  bool can_go_directly(const WorkRequest& work, MemoryPlace place) const;
  bool can_be_fetched(const WorkRequest& work, MemoryPlace place) const;
  bool lend(const Active& entry, Sent& sent);
  void take_back(Sent& sent);
  void forget_sent();
  Borrower borrower() const { return {peer_.wire, peer_.address.value}; }
  bool may_be_done(std::uint64_t number, bool was_sent) const;
  bool asks_only(const Sent& sent);
  WireRequest request_for(const Sent& sent);
  Turn transmit(Sent& sent, TimePoint now);
  void note_sent(Sent& sent);
  Turn load(Active& entry, Sent& sent);
  void load_ahead(Sent& sent);
  bool transmit_again(TimePoint now);
  void look_at_timer(TimePoint now);
  void ask_again(TimePoint now);
  void note_question(std::uint64_t number, TimePoint now);
  void forget_unsent();
  void repeat_from(std::size_t position);
  void note_answer(TimePoint sent_at);
  void go_by_wire(std::size_t position);
  void cut_for_wire(Active& entry) const;
  void take_answer(Sent& sent, WireResponse* response, TimePoint now);
  bool land(Active& entry, const Sent& sent, WireResponse& response, TimePoint now);
  bool go_on_landing();
  void begin_landing(Landing& landing, Active& entry);
  void end_piece(Active& entry);
  bool retire();
  void complete(const Active& entry);
  void poison(const WorkRequest& work);
  void store_first_error(const CompletionRecord& record) const;
  void write_error(const CompletionRecord& record);

  const QueueSetup setup_;
  const std::uint32_t number_;
  const std::uint32_t name_;  // that it goes by in the ring and in completions
  NicContext& nic_;
  QueuePeer peer_;
  WorkReader reader_;
  CompletionWriter completions_;

  std::uint64_t end_;        // rung
  std::uint64_t fetched_;    // read from the ring
  std::uint64_t completed_;  // also where flushing goes on
  std::deque<Active> active_;
  std::uint64_t first_serial_ = 0;
  std::size_t next_ = 0;  // in active_: the first that has something to send
  std::deque<Sent> sent_;
  ByteWindow window_;
  std::uint64_t under_way_ = 0;  // bytes of sent_ without an answer, on a wire in either direction
  std::optional<std::uint64_t> question_;  // the number of a request that alone was repeated
  std::optional<TimePoint> told_;          // when that was answered, and nothing else since
  bool fetches_ = true;                    // the peer does not say that it cannot fetch
  bool held_up_ = false;  // one of them waits for its payload, and all behind it for that
  std::deque<Landing> landings_;
  std::uint64_t next_number_ = 0;
  std::size_t reads_in_flight_ = 0;  // begun and not answered
  /// Begun since the oldest request without a response: those that the peer keeps answers for.
  std::size_t reads_in_window_ = 0;
  TimePoint heard_{};                // of the peer
  TimePoint not_before_{};           // it was not ready
  std::uint64_t halted_at_ = kNone;  // serial of an entry that fails: none after it begins
  bool failed_ = false;
  bool has_error_word_ = false;
  bool is_of_probe_ = false;  // that error, and nothing else has been told of since
};

}  // namespace oriel::net
