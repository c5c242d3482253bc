/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* Compares results of calls, and records the functions that any process has called. */
#define _DEFAULT_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "every_call.h"

enum { kMostNames = 128, kNameBytes = 48, kLineBytes = 512 };

typedef struct {
  char names[kMostRanks + 1][kMostNames][kNameBytes];
} Notes;

int this_rank;
int ranks;
static Notes* notes;
static int failure_count;

void open_notes(void) {
  notes = mmap(NULL, sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (notes == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
}

/* Adds `name` to a list unless it is there. */
static void add_name(char (*list)[kNameBytes], const char* name) {
  for (int i = 0; i < kMostNames; ++i) {
    if (strcmp(list[i], name) == 0) return;
    if (list[i][0] != '\0') continue;
    snprintf(list[i], kNameBytes, "%s", name);
    return;
  }
}

/* Odd ranks call the pnccl names. */
static const char* twin_prefix(void) {
  return this_rank % 2 == 0 ? "" : "p";
}

static const char* file_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

void note_call(const char* name) {
  char whole[kNameBytes];
  snprintf(whole, sizeof whole, "%snccl%s", twin_prefix(), name);
  add_name(notes->names[this_rank], whole);
}

int failures(void) {
  return failure_count;
}

void expect_result(const char* file, int line, const char* call, ncclResult_t expected,
                   ncclResult_t got) {
  if (got == expected) return;
  fprintf(stderr, "rank %d: %s:%d: %s%s: expected %d (%s), got %d (%s): %s\n", this_rank,
          file_name(file), line, twin_prefix(), call, (int)expected, ncclGetErrorString(expected),
          (int)got, ncclGetErrorString(got), ncclGetLastError(NULL));
  _exit(1);
}

void expect_int(const char* file, int line, const char* what, long long expected, long long got) {
  if (got == expected) return;
  ++failure_count;
  fprintf(stderr, "rank %d: %s:%d: %s: expected %lld, got %lld\n", this_rank, file_name(file), line,
          what, expected, got);
}

void expect_word(const char* file, int line, const char* word) {
  const char* text = CALL(GetLastError, (NULL));
  if (strstr(text, word) != NULL) return;
  ++failure_count;
  fprintf(stderr, "rank %d: %s:%d: ncclGetLastError: expected \"%s\" in it, got \"%s\"\n",
          this_rank, file_name(file), line, word, text);
}

/* Adds each word that begins with nccl or pnccl and is followed by a parenthesis. */
static void add_declared(char (*list)[kNameBytes], const char* line) {
  for (const char* at = line; *at != '\0';) {
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_') ++length;
    const int ours = strncmp(at, "nccl", 4) == 0 || strncmp(at, "pnccl", 5) == 0;
    if (ours && at[length] == '(' && length < kNameBytes) {
      char name[kNameBytes] = "";
      memcpy(name, at, length);
      add_name(list, name);
    }
    at += length > 0 ? length : 1;
  }
}

/* Prints the names of `list` that `other` lacks, and returns their number. */
static int print_missing(char (*list)[kNameBytes], char (*other)[kNameBytes], const char* what) {
  int missing = 0;
  for (int i = 0; i < kMostNames && list[i][0] != '\0'; ++i) {
    int found = 0;
    for (int j = 0; j < kMostNames && !found; ++j) found = strcmp(list[i], other[j]) == 0;
    if (found) continue;
    ++missing;
    fprintf(stderr, "%s: %s\n", list[i], what);
  }
  return missing;
}

int compare_with_header(const char* path) {
  static char declared[kMostNames][kNameBytes];
  static char called[kMostNames][kNameBytes];
  char line[kLineBytes];
  FILE* header = fopen(path, "r");
  if (header == NULL) {
    perror(path);
    return 1;
  }
  while (fgets(line, sizeof line, header) != NULL) {
    const int comment = strncmp(line, "//", 2) == 0 || strncmp(line, "#", 1) == 0;
    if (!comment) add_declared(declared, line);
  }
  fclose(header);
  for (int process = 0; process <= ranks; ++process) {
    for (int i = 0; i < kMostNames && notes->names[process][i][0] != '\0'; ++i) {
      add_name(called, notes->names[process][i]);
    }
  }
  if (declared[0][0] == '\0' || declared[kMostNames - 1][0] != '\0') {
    fprintf(stderr, "%s: expected 1 to %d functions\n", path, kMostNames - 1);
    return 1;
  }
  return print_missing(declared, called, "declared, expected a call, got none") +
         print_missing(called, declared, "called, expected a declaration, got none");
}
