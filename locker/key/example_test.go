package key_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/latchkit/latchkit/locker/key"
)

// An adapter defines the parts of keys, and compiles the templates of its users.
func Example() {
	grammar := key.Grammar[*http.Request]{Sources: map[string]key.Source[*http.Request]{
		"header": {Noun: "header", Bind: func(name string) (key.Read[*http.Request], error) {
			return func(_ context.Context, r *http.Request) (string, error) { return r.Header.Get(name), nil }, nil
		}},
	}}
	template, err := grammar.Compile("cart:{header.X-Tenant}:{header.X-User}")
	if err != nil {
		log.Fatal(err)
	}
	r := &http.Request{Header: http.Header{"X-Tenant": {"acme:eu"}, "X-User": {"ann"}}}
	fmt.Println(template.Key(context.Background(), r))
	r.Header.Del("X-User")
	fmt.Println(template.Key(context.Background(), r))
	// Output:
	// cart:acme%3Aeu:ann <nil>
	//  the request lacks the header "X-User"
}
