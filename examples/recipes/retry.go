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
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		pause := time.Duration(seconds)*time.Second + rand.N(200*time.Millisecond) // so that clients do not come together
		deadline, bounded := r.Context().Deadline()
		once := r.GetBody == nil && r.Body != nil && r.Body != http.NoBody // the body cannot be sent again
		if !refusal[res.StatusCode] || seconds < 1 || once || bounded && time.Until(deadline) < pause {
			return res, nil
		}
		_ = res.Body.Close()
		if r.GetBody != nil { // http.NewRequest sets it for a body in memory
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// refusal has the statuses with which a guarded route refuses a request.
var refusal = map[int]bool{
	http.StatusConflict: true, http.StatusLocked: true, http.StatusTooManyRequests: true, http.StatusServiceUnavailable: true,
}
