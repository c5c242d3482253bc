// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace oriel {

/// Has the kernel make this process's table of descriptors large enough for 512 of them, so that it
/// need not grow while a communicator starts. Does nothing once the process has several threads.
///
/// Linux grows a table that threads share only after a grace period of RCU (expand_fdtable in
/// fs/file.c). On a machine of 64 cores that held one rank, and with it all others, for 10 to 30 ms
/// in the middle of its start: a process with a CUDA context is close to the first boundary, 64
/// descriptors. As long as there is one thread, growing costs microseconds.
/// Local, not blocking; leaves no descriptor behind and never fails.
void make_room_for_descriptors();

}  // namespace oriel
