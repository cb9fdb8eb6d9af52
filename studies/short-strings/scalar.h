/* What can be done with scalars (layout.h tells what they are). */
#ifndef SCALAR_H
#define SCALAR_H

#include "key.h"
#include "layout.h"

/*
 * --- Operations. Bytes that are given must not be those of the scalar itself, and may be NULL where there are none. A
 * number without a text is as empty. Without memory the program ends with 3 and a message. ---
 */

/* A scalar without a value, with one reference. */
struct scalar *scalar_new(void);
struct scalar *scalar_new_text(const char *bytes, size_t length);
/* Of bytes that are not ours and stay where they are, with a NUL behind them; they may be read-only. */
struct scalar *scalar_new_foreign(const char *bytes, size_t length);
/* One reference fewer; with the last, it is gone. */
void scalar_free(struct scalar *s);

void scalar_set(struct scalar *s, const char *bytes, size_t length);
void scalar_append(struct scalar *s, const char *bytes, size_t length);
void scalar_append_scalar(struct scalar *s, struct scalar *other); /* which may be s */
void scalar_set_integer(struct scalar *s, int64_t value);
void scalar_set_number(struct scalar *s, double value);
/* The text of an integer that has none yet, which it keeps: perl's sv_2pv. */
void scalar_write_integer(struct scalar *s);
/* perl's x: `count` times the text of `from`. A text larger than can be is no memory. */
void scalar_repeat(struct scalar *to, struct scalar *from, size_t count);
/* At most `length` bytes from `at` on, of `from` (which may be `to`). */
void scalar_substr(struct scalar *to, struct scalar *from, size_t at, size_t length);

/* perl's sv_setsv: shares, takes (from temporaries and large targets) or copies the text. */
void scalar_copy(struct scalar *to, struct scalar *from);
/* Takes the buffer, as pp_subst does; `from` has no value afterwards. */
void scalar_steal(struct scalar *to, struct scalar *from);

/* To a larger type. A short text stays where it is: the old body lives on as its buffer. */
void scalar_upgrade(struct scalar *s, enum type type);
/* A buffer that nobody else has, with room for this many bytes more. */
char *scalar_make_mutable(struct scalar *s, size_t room);
/* No value; the buffer is kept for the next one, as at the end of a scope. */
void scalar_clear(struct scalar *s);
/* No value and no buffer: perl's undef(). */
void scalar_undef(struct scalar *s);

/* How many scalars have this one's buffer, as the layout knows it. */
size_t scalar_sharers(const struct scalar *s);
/* A scalar whose text is the key's, as `keys %hash` gives them. */
struct scalar *scalar_new_key(struct key *key);

/* Gives all arenas back. */
void scalars_end(void);

#endif
