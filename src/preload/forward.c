/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* libnccl.so.2: one jump for each entry of liboriel.so.0, whatever its parameters. The loader fills
   the table of addresses before anything can be called. docs/notes/forwarding.md has the reasons.
 */
#if !defined(__x86_64__)
#error "libnccl.so.2 has jumps for x86-64 only"
#endif

/* ncclX and pncclX share one address, as in liboriel.so.0. */
__asm__(
    ".macro forward name\n"
    "  .text\n"
    "  .p2align 4\n"
    "  .globl \\name, p\\name\n"
    "  .type \\name, @function\n"
    "  .type p\\name, @function\n"
    "\\name:\n"
    "p\\name:\n"
    "  .cfi_startproc\n"
    "  endbr64\n"
    "  jmp *oriel_\\name@GOTPCREL(%rip)\n"
    "  .cfi_endproc\n"
    "  .size \\name, . - \\name\n"
    "  .size p\\name, . - p\\name\n"
    ".endm\n");
#define ORIEL_FORWARD(name) __asm__("forward " #name);
#include "entries.inc"
