package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// rights lists one example call for each command that latchkit's scripts and client use.
// docs/operations.md lists the same commands. KEY is the key of the lock, Q is a key that latchkit
// stores for this lock, and I is an inbox.
var rights = strings.Split(`del KEY
echo m
evalsha 0 0
eval 0 0
exists KEY
get KEY
getex KEY
hdel Q f
hget Q f
hgetall Q
hmget Q f
hlen Q
hset Q f v
info
mget KEY Q
pexpire KEY 1
ping
pttl KEY
publish I m
pubsub numsub I
set KEY v
subscribe I
time
type KEY
zadd Q 1 m
zcard Q
zcount Q 0 1
zrange Q 0 1
zrank Q m
zrem Q m
zremrangebyscore Q 0 1
zscore Q m`, "\n")

// clusterRights are the additional calls that latchkit needs on a Cluster.
var clusterRights = strings.Split(`ssubscribe S
sunsubscribe
unsubscribe
spublish S m
pubsub shardnumsub S
cluster slots
cluster shards
command
asking`, "\n")

// operatorRights are the calls that latchctl ls, show and doctor need.
var operatorRights = strings.Split(`scan 0
getrange KEY 0 1`, "\n")

// rights checks, by dry runs, which commands the user may run.
func (p *patient) rights(ctx context.Context) {
	user := p.user
	if user == "" {
		var err error
		if user, err = p.client.Do(ctx, "acl", "whoami").Text(); err != nil {
			p.report(hint, "rights", "not checked: the user may not run ACL WHOAMI", "run doctor as an administrator, with --user")
			return
		}
	}
	if p.user != "" && p.client.Do(ctx, "acl", "getuser", user).Err() == redis.Nil {
		p.report(bad, "rights", "there is no user "+user, "docs/operations.md has the ACL for a user of locks")
		return
	}
	needed := rights
	if p.info["cluster_enabled"] == "1" {
		needed = slices.Concat(needed, clusterRights)
	}
	missing, err := p.denied(ctx, user, needed)
	if err != nil {
		p.report(hint, "rights", "not checked: "+err.Error(), "run doctor as an administrator, with --user "+user+"; ACL DRYRUN needs Redis 7")
		return
	}
	if len(missing) > 0 {
		p.report(bad, "rights", fmt.Sprintf("user %s may not run %s on the keys and channels of %s", user, strings.Join(missing, ", "), p.key), "docs/operations.md has the ACL for a user of locks; --key names another key to try")
		return
	}
	p.report(okay, "rights", "user "+user+" may take and release "+p.key, "")
	if missing, err = p.denied(ctx, user, operatorRights); err == nil && len(missing) > 0 {
		p.report(hint, "rights", "user "+user+" may not run "+strings.Join(missing, ", ")+", so ls and doctor see nothing", "give operators a user with these commands")
	}
}

// denied returns those of the commands that the server would refuse to the user.
func (p *patient) denied(ctx context.Context, user string, commands []string) (missing []string, err error) {
	names := map[string]string{"KEY": p.key, "Q": "latchkit:q:{" + p.key + "}:" + p.key, "I": "latchkit:i:doctor", "S": "latchkit:s:{0}:doctor"}
	calls := make([]*redis.Cmd, len(commands))
	pipe := p.client.Pipeline()
	for i, line := range commands {
		words := []any{"acl", "dryrun", user}
		for word := range strings.FieldsSeq(line) {
			if name, ok := names[word]; ok {
				word = name
			}
			words = append(words, word)
		}
		calls[i] = pipe.Do(ctx, words...)
	}
	_, _ = pipe.Exec(ctx) // the error of Exec is not needed, because each call has its own error
	for i, call := range calls {
		answer, err := call.Text()
		switch {
		// The server does not know the command, because its version is too old. So no script on
		// this server uses the command.
		case err != nil && strings.Contains(err.Error(), "Command '"):
		case err != nil:
			return nil, err
		case answer != "OK":
			words := strings.Fields(commands[i])
			name := words[0]
			if name == "pubsub" || name == "cluster" {
				name += "|" + words[1]
			}
			missing = append(missing, name)
		}
	}
	return missing, nil
}
