package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// Some hosted servers refuse each script whose text names PUBLISH or PUBSUB, before it runs. So
// each script that sends messages has a second text without them, made of the same files. A Store
// begins with the ordinary scripts. When the server refuses one of them but runs the same script
// without messages, the Store uses such scripts from then on, and its waiters poll. They keep
// their places in the queue. Stores of both kinds exclude each other, because their scripts differ
// only in messages, and in the short ways for waiters, which have the same effect as the long ways.

// withoutMessages returns a script's text without the parts that send or count messages, and
// whether there are such parts. A line "-- messages" and a line "-- end of messages" enclose each
// part. A line "-- without messages: …" in a part has what replaces the part. All comments are left
// out, because a server may look for the names of commands in comments too.
func withoutMessages(text string) (silent string, sends bool) {
	var b strings.Builder
	within := false
	for line := range strings.Lines(text) {
		switch code := strings.TrimSpace(line); {
		case code == "-- messages":
			within, sends = true, true
		case code == "-- end of messages":
			within = false
		case within:
			if instead, ok := strings.CutPrefix(code, "-- without messages: "); ok {
				b.WriteString(instead + "\n")
			}
		case !strings.HasPrefix(code, "--"):
			b.WriteString(line)
		}
	}
	return b.String(), sends
}

// refusesText reports whether err may be the refusal of a script's text, or of a command that the
// text names. Servers have many words for it. The error of a script that has run, for example
// while its slot moves, is no such refusal: a second attempt may succeed for another reason.
func refusesText(err error) bool {
	if err == nil {
		return false // before reply is allocated: this is called for each answer
	}
	var reply redis.Error
	if !errors.As(err, &reply) || errorCode(reply.Error()) != "ERR" {
		return false
	}
	text := strings.ToLower(reply.Error())
	has := func(word string) bool { return strings.Contains(text, word) }
	return slices.ContainsFunc([]string{"lua", "script", "pubsub", "publish"}, has) &&
		!slices.ContainsFunc([]string{"latchkit:", "user_script", "running script", "script killed", "non local key", "acl failure"}, has)
}

// run runs the script once, without messages if the server refuses messages.
func (s *Store) run(ctx context.Context, script Script, keys []string, args ...any) (string, error) {
	if script.silent == nil {
		return script.Run(ctx, s.links, keys, args...)
	}
	var refused error
	if !s.silent.Load() {
		text, err := script.Run(ctx, s.links, keys, args...)
		if !refusesText(err) {
			return text, err
		}
		refused = err
	}
	text, err := script.silent.Run(ctx, s.links, keys, args...)
	if refused != nil && !refusesText(err) {
		s.fallSilent(refused)
	}
	return text, err
}

// fallSilent makes all later calls use scripts without messages. The parameter refused is the
// server's refusal of a script with messages.
func (s *Store) fallSilent(refused error) {
	if !s.silent.Swap(true) && s.inbox != nil {
		s.inbox.forbid(refused)
	}
}

// choose makes the question use the script without messages if the server refuses messages.
func (q *question) choose() {
	if q.silent != nil && q.store.silent.Load() {
		q.Script, q.Words[1], q.silent = q.silent.Script, q.silent.sha, nil
	}
}

// askSilently repeats the question, which the server has refused, by the script without messages.
func (q *question) askSilently(ctx context.Context, refused error) (store.Grant, error) {
	c := &link.Call{Script: q.silent.Script, Words: slices.Clone(q.Words), Key: q.Key, Class: q.Class, Acked: q.Acked}
	c.Words[1] = q.silent.sha
	text, err := q.store.links.Do(ctx, c)
	g, err := q.readGrant(c, text, err)
	if !refusesText(err) {
		q.store.fallSilent(refused)
	}
	return g, err
}
