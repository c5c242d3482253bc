/* SPDX-FileCopyrightText: The Oriel authors */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ORIEL_TEST_ABI_FACTS_H_
#define ORIEL_TEST_ABI_FACTS_H_

/* A fact about a header: a size, an offset, an enumerator, a constant. facts.c is compiled once
   with Oriel's nccl.h and once with NVIDIA's, and the test compares what the compiler saw. */
struct AbiFact {
  const char* name;
  long long value;
};

#ifdef __cplusplus
extern "C" {
#endif
/* The facts, terminated by an entry with a null name. */
extern const struct AbiFact oriel_abi_facts[];
extern const struct AbiFact vendor_abi_facts[];
/* Returns field number `which` of NCCL_CONFIG_INITIALIZER and then NCCL_SIM_INFO_INITIALIZER.
   Returns 1 for a null pointer and for an estimatedTime of -1. Returns -1 past the last field. */
long long oriel_abi_initial(int which);
long long vendor_abi_initial(int which);
#ifdef __cplusplus
}
#endif

#endif
