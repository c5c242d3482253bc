// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// Who is cut off when one rank hears another one no more. What it has seen of the two of them does
/// not tell, for each is silent to the other; what it hears of third hosts does.
namespace oriel::boot {

/// What a rank knows of another host since a link or queue of its own has fallen silent.
enum class HostSight : std::uint8_t {
  unknown,  ///< asked, and there has been no time to answer
  answers,  ///< a rank there has answered what was asked since
  silent,   ///< whoever was asked there has been given up
  slow,     ///< as unknown, but it has answered what was asked when the other had fallen silent
};

enum class CutOff : std::uint8_t { undecided, peer, self };

/// The hosts that this rank still reaches, its own among them, are one side of what has broken and
/// all others are the other one: the smaller side is cut off from the larger. So every rank of a
/// host that hears no other host names itself, whoever is the first to speak. Of two sides of one
/// size, such as two hosts, neither can tell, and each names the other. Not to know yet is no
/// answer once `is_late`: who has not answered by then is silent, but for those that are slow,
/// which are waited for. `others`: all hosts with ranks that have not left but this rank's;
/// `of_peer`: which of them has the rank that is silent. If it is heard by another rank, it is that
/// one alone which is at fault.
CutOff judge_silence(std::span<const HostSight> others, std::size_t of_peer, bool is_late);

}  // namespace oriel::boot
