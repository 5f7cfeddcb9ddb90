package grpclock

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
)

// RetryServiceConfig returns a service config for grpc.WithDefaultServiceConfig. With this config,
// gRPC's own client repeats refused calls after the time that the server requests. It does not
// repeat calls that may have had an effect. An element of methods is a full method, such as
// Inventory_Reserve_FullMethodName, or a service, such as "inventory.v1.Inventory" for all methods
// of the service. Without methods, the config applies to all methods of all services.
//
// A call is tried up to five times, which is the largest number that gRPC allows. ABORTED,
// UNAVAILABLE and RESOURCE_EXHAUSTED are repeated even if they do not come from grpclock. If the
// server requests no time, the repetition follows after 50 ms to 2 s. So name only methods for
// which these repetitions are safe.
func RetryServiceConfig(methods ...string) string {
	type name struct {
		Service string `json:"service,omitempty"`
		Method  string `json:"method,omitempty"`
	}
	type policy struct {
		MaxAttempts          int      `json:"maxAttempts"`
		InitialBackoff       string   `json:"initialBackoff"`
		MaxBackoff           string   `json:"maxBackoff"`
		BackoffMultiplier    float64  `json:"backoffMultiplier"`
		RetryableStatusCodes []string `json:"retryableStatusCodes"`
	}
	type methodConfig struct {
		Name        []name `json:"name"`
		RetryPolicy policy `json:"retryPolicy"`
	}
	names := make([]name, 0, len(methods))
	for _, m := range methods {
		service, method, _ := strings.Cut(strings.TrimPrefix(m, "/"), "/")
		names = append(names, name{service, method})
	}
	if len(names) == 0 {
		names = append(names, name{})
	}
	text, _ := json.Marshal(struct { // cannot fail for texts and numbers
		MethodConfig []methodConfig `json:"methodConfig"`
	}{[]methodConfig{{names, policy{
		MaxAttempts: 5, InitialBackoff: "0.05s", MaxBackoff: "2s", BackoffMultiplier: 2,
		RetryableStatusCodes: []string{"ABORTED", "UNAVAILABLE", "RESOURCE_EXHAUSTED"},
	}}}})
	return string(text)
}

// previousAttempts is the header in which gRPC's own clients send the number of their earlier
// attempts.
const previousAttempts = "grpc-previous-rpc-attempts"

// shortest returns the least time that a client must wait before it repeats a call once more. The
// argument repeated is how many times the client has repeated the call already. A client has only a
// few attempts. If nothing is known about the holder, the Locker's advice is 50 ms each time, so
// without this minimum all attempts would be over in 0.3 s.
func shortest(repeated int) time.Duration {
	if repeated <= 0 {
		return 0
	}
	return min(50*time.Millisecond<<(2*min(repeated, 5)), soon)
}

// shortestFor returns the result of shortest for the call to which ctx belongs.
func shortestFor(ctx context.Context) time.Duration {
	for _, n := range metadata.ValueFromIncomingContext(ctx, previousAttempts) {
		if repeated, err := strconv.Atoi(n); err == nil {
			return shortest(repeated)
		}
	}
	return 0
}
