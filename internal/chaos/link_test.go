package chaos

import (
	"slices"
	"strings"
	"testing"
)

func TestWhichRequestAReplyBelongsTo(t *testing.T) {
	for name, test := range map[string]struct {
		requests []string
		replies  []string
		want     []string // the request that each reply belongs to, "" for none
	}{
		"in order": {
			requests: []string{"GET a", "GET b"},
			replies:  []string{"$1\r\n1\r\n", "$1\r\n2\r\n"},
			want:     []string{"GET a", "GET b"},
		},
		"a server's greeting, unasked": {
			replies: []string{"-ERR max number of clients reached\r\n"},
			want:    []string{""},
		},
		"an array that reads like a message, to a client that listens to nothing": {
			requests: []string{"LRANGE l 0 -1", "GET b"},
			replies:  []string{push("*", "message", "c", "m"), "$-1\r\n"},
			want:     []string{"LRANGE l 0 -1", "GET b"},
		},
		"a push before the reply": {
			requests: []string{"SUBSCRIBE c", "PING"},
			replies:  []string{push(">", "subscribe", "c"), push(">", "message", "c", "m"), push(">", "invalidate", "k"), "+PONG\r\n"},
			want:     []string{"SUBSCRIBE c", "", "", "PING"},
		},
		"a message before the reply, in RESP2": {
			requests: []string{"SUBSCRIBE c", "PING"},
			replies:  []string{push("*", "subscribe", "c"), push("*", "message", "c", "m"), push("*", "pong", "")},
			want:     []string{"SUBSCRIBE c", "", "PING"},
		},
		"a confirmation for each channel": {
			requests: []string{"SUBSCRIBE a b", "SUBSCRIBE c", "PING"},
			replies:  []string{push(">", "subscribe", "a"), push(">", "subscribe", "b"), push(">", "subscribe", "c"), "+PONG\r\n"},
			want:     []string{"SUBSCRIBE a b", "SUBSCRIBE a b", "SUBSCRIBE c", "PING"},
		},
		"a subscription that the server refuses": {
			requests: []string{"SSUBSCRIBE a b", "PING"},
			replies:  []string{"-NOPERM\r\n", "+PONG\r\n"},
			want:     []string{"SSUBSCRIBE a b", "PING"},
		},
		"a subscription that the server ends by itself": {
			requests: []string{"SSUBSCRIBE a", "PING"},
			replies:  []string{push(">", "ssubscribe", "a"), push(">", "sunsubscribe", "a"), "+PONG\r\n"},
			want:     []string{"SSUBSCRIBE a", "", "PING"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &link{proxy: &Proxy{}}
			requestOf := map[*Fault]string{nil: ""}
			for _, request := range test.requests {
				fault := l.proxy.LoseReplies(1, func(r []byte) bool { return string(r) == request+"\r\n" })
				requestOf[fault] = request
				l.expectReply(message(request + "\r\n"))
			}
			var got []string
			for _, reply := range test.replies {
				got = append(got, requestOf[l.takeFault(message(reply))])
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func push(kind string, words ...string) string {
	var wire strings.Builder
	wire.WriteString(kind + "3\r\n")
	for _, word := range words {
		wire.WriteString("$1\r\n" + word + "\r\n")
	}
	return wire.String()
}
