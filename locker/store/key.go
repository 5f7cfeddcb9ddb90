package store

import (
	"fmt"
	"strings"
)

// ReservedPrefix is the beginning of the keys in which latchkit keeps its own data beside the
// leases, such as queues and fence counters. [CheckKey] refuses keys that begin with
// ReservedPrefix.
const ReservedPrefix = "latchkit:"

// MaxKeyBytes is the largest length of a key with its prefix, in bytes. If a key would be
// longer, lock its hash instead.
const MaxKeyBytes = 512

// CheckKey returns an error if the key l cannot be locked.
func CheckKey(l string) error {
	switch {
	case l == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidKey)
	case len(l) > MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed; hash the long part", ErrInvalidKey, len(l), MaxKeyBytes)
	case strings.HasPrefix(l, ReservedPrefix):
		return fmt.Errorf("%w: keys that start with %q are reserved for the locks' own data", ErrInvalidKey, ReservedPrefix)
	case HashTag(l) == l && strings.Contains(l, "}"):
		return fmt.Errorf("%w: it has a '}' but no hash tag {…}, so its companion keys cannot be put into its cluster slot", ErrInvalidKey)
	}
	return nil
}

// HashTag returns the part of l that Redis Cluster hashes. This is the text between the first '{'
// and the first '}' after it. If l has no such pair of braces, or no text between the two, HashTag
// returns all of l.
func HashTag(l string) string {
	if _, rest, ok := strings.Cut(l, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return l
}
