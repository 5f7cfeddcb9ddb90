package main

import (
	"encoding/json"
	"maps"
	"math/bits"
	"slices"
	"time"
)

// histogram counts durations in buckets. A bucket has durations that differ by at most 1/64.
// Such buckets are precise enough for a percentile, and so few that a child can send all counts
// to its parent. The largest duration is also stored by itself. The zero value is empty.
type histogram struct {
	counts []uint64 // by bucket
	total  uint64
	max    time.Duration
}

// subBuckets is the number of buckets between two powers of two.
const subBuckets, subBits = 64, 6

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 2*subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)*subBuckets + int(v>>shift) - subBuckets
}

// upperEnd returns the largest duration in a bucket.
func upperEnd(bucket int) time.Duration {
	if bucket < 2*subBuckets {
		return time.Duration(bucket)
	}
	shift := bucket/subBuckets - 1
	return time.Duration((bucket%subBuckets+subBuckets+1)<<shift - 1)
}

func (h *histogram) add(d time.Duration) { h.addMany(bucketOf(d), 1, d) }

func (h *histogram) addMany(bucket int, n uint64, largest time.Duration) {
	if bucket >= len(h.counts) {
		h.counts = append(h.counts, make([]uint64, bucket+1-len(h.counts))...)
	}
	h.counts[bucket] += n
	h.total += n
	h.max = max(h.max, largest)
}

func (h *histogram) merge(other histogram) {
	for bucket, n := range other.counts {
		if n > 0 {
			h.addMany(bucket, n, 0)
		}
	}
	h.max = max(h.max, other.max)
}

// percentile returns the percentile p of the durations. The result may be larger than the true
// percentile by at most 1/64.
func (h *histogram) percentile(p float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	left := uint64(rank(p, int(h.total)))
	for bucket, n := range h.counts {
		if n >= left {
			return min(upperEnd(bucket), h.max)
		}
		left -= n
	}
	return h.max
}

// wireHistogram is the form in which a child sends a histogram to its parent. It has only the
// buckets that contain durations.
type wireHistogram struct {
	Counts map[int]uint64
	Max    time.Duration
}

// MarshalJSON lets a child process report a histogram to its parent.
func (h histogram) MarshalJSON() ([]byte, error) {
	w := wireHistogram{map[int]uint64{}, h.max}
	for bucket, n := range h.counts {
		if n > 0 {
			w.Counts[bucket] = n
		}
	}
	return json.Marshal(w)
}

// UnmarshalJSON undoes MarshalJSON.
func (h *histogram) UnmarshalJSON(text []byte) error {
	var w wireHistogram
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	*h = histogram{max: w.Max}
	for _, bucket := range slices.Sorted(maps.Keys(w.Counts)) {
		h.addMany(bucket, w.Counts[bucket], 0)
	}
	return nil
}
