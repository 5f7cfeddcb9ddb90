package recipes

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// ComeBack sends a request, and sends it again while the server refuses it and says in Retry-After
// when to come again: then nothing was done. It returns the last reply when the next attempt would
// come after the deadline of the request's context, so give the context a deadline.
func ComeBack(client *http.Client, r *http.Request) (*http.Response, error) {
	for {
		res, err := client.Do(r)
		if err != nil {
			return nil, err
		}
		seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
		pause := time.Duration(seconds)*time.Second + rand.N(200*time.Millisecond) // so that clients do not come together
		deadline, bounded := r.Context().Deadline()
		switch {
		case err != nil, !refused[res.StatusCode], bounded && time.Until(deadline) < pause:
			return res, nil
		case r.GetBody != nil: // http.NewRequest sets it for a body in memory
			if r.Body, err = r.GetBody(); err != nil {
				return res, nil
			}
		case r.Body != nil && r.Body != http.NoBody:
			return res, nil // the body cannot be sent again
		}
		_ = res.Body.Close()
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

var refused = map[int]bool{http.StatusConflict: true, http.StatusLocked: true, http.StatusTooManyRequests: true, http.StatusServiceUnavailable: true}
