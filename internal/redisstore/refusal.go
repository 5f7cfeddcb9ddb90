package redisstore

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// Refused turns each error that proves that the script had no effect into a Refusal. An error reply
// of Redis proves that the script granted and freed nothing. The server has refused the script
// before it ran, or has aborted it at its first effective write. Without a connection, or with a
// full pool, the script was not sent. All other errors (EOF, time-out, reset, a context that ended
// inside go-redis) are unclear, and returned unchanged.
func Refused(err error) error {
	var reply redis.Error
	var network *net.OpError
	switch {
	case errors.As(err, &reply):
		return refusedBy(errorCode(reply.Error()), err)
	case errors.As(err, &network) && network.Op == "dial",
		errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted),
		errors.Is(err, link.ErrHangs), errors.Is(err, link.ErrNoState), errors.Is(err, link.ErrLeft):
		return &store.Refusal{Temporary: true, Err: err}
	case errors.Is(err, redis.ErrClosed):
		return &store.Refusal{Err: fmt.Errorf("%w; the Redis client is closed: by Close of a Locker of locker.Open, or by the program, which must close the Locker first", err)}
	case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET): // go-redis drops the text of a full server
		return fmt.Errorf("%w (the server has closed the connection; if it closes each new one, it may have reached its maxclients; see its log)", err)
	}
	return err
}

// refusedBy returns the Refusal that an error reply with the given code means, or err if the
// meaning is unknown. If an operator must act, the text of the error also contains the remedy.
func refusedBy(code string, err error) error {
	switch code {
	case "TRYAGAIN": // a slot moves
		return &store.Refusal{Temporary: true, Err: fmt.Errorf("%w (%w)", store.ErrMoving, err)}
	case "READONLY":
		return &store.Refusal{Temporary: true, Err: fmt.Errorf("the server is a replica; give a client of the master, or redis.NewFailoverClient if Sentinel picks it (%w)", err)}
	case "MOVED":
		return &store.Refusal{Temporary: true, Err: fmt.Errorf("the key is on another node of a Redis Cluster; give a *redis.ClusterClient (%w)", err)}
	case "LOADING", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "ASK":
		return &store.Refusal{Temporary: true, Err: err}
	case "WRONGTYPE":
		return &store.Refusal{Err: fmt.Errorf("%w: the key, or a companion key of it, holds data that is no plain lock (a hash may be a lock of Redisson); the data was not changed; choose another key (%w)", store.ErrInvalidKey, err)}
	case "OOM":
		return &store.Refusal{Err: fmt.Errorf("the server is out of memory; raise maxmemory or free memory (%w)", err)}
	case "NOPERM":
		return &store.Refusal{Err: forbidden(err)}
	case "MISCONF":
		return &store.Refusal{UntilRepaired: true, Err: fmt.Errorf("the server refuses writes because it cannot save; see its log (%w)", err)}
	case "NOREPLICAS":
		return &store.Refusal{UntilRepaired: true, Err: fmt.Errorf("the server refuses writes because it has too few replicas; bring its replicas back, or lower min-replicas-to-write (%w)", err)}
	}
	switch {
	case redis.IsMaxClientsError(err):
		return &store.Refusal{Temporary: true, Err: fmt.Errorf("the server accepts no more connections; raise its maxclients, or lower PoolSize in the options of its clients (%w)", err)}
	case redis.IsAuthError(err):
		return &store.Refusal{UntilRepaired: true, Err: fmt.Errorf("the server rejects the client's login; check the user and the password in the client's options (%w)", err)}
	// All keys of a script are in one slot, and the script names all of them. So a node that serves
	// the slot finds them, unless the slot just moves: AWS Serverless says so during spikes.
	case strings.Contains(err.Error(), "access a non local key"):
		return &store.Refusal{Temporary: true, Err: fmt.Errorf("%w (%w)", store.ErrMoving, err)}
	case code != "ERR": // below
	case forbiddenInScript(err.Error()):
		return &store.Refusal{Err: forbidden(err)}
	default:
		return &store.Refusal{Err: withAdvice(err)}
	}
	return err // the code is unknown: a proxy may have sent this reply after it had forwarded the call
}

// forbiddenInScript reports whether text is the error of a command inside a script that the ACL
// forbids. The first text is that of Redis 7.0, the second that of Redis 7.2 and of Valkey.
func forbiddenInScript(text string) bool {
	return strings.Contains(text, "The user executing the script can't") || strings.Contains(text, "ACL failure in script")
}

// forbidden adds to err, a refusal of the server's ACL, what to do.
func forbidden(err error) error {
	if text := strings.ToLower(err.Error()); strings.Contains(text, "'eval") { // also evalsha
		return fmt.Errorf("the server's ACL forbids the scripts of locks; allow the commands that docs/operations.md lists, or use locker.NewScriptless, which needs no scripts (%w)", err)
	}
	return fmt.Errorf("the server's ACL forbids a command or key that locks need; docs/operations.md lists them (%w)", err)
}

// withAdvice adds to err, a refusal without a code, what to do when the server does not have all of
// Redis.
func withAdvice(err error) error {
	text := strings.ToLower(err.Error())
	switch unknown := strings.Contains(text, "unknown") && strings.Contains(text, "command"); {
	case unknown && (strings.Contains(text, "from script") || strings.Contains(text, "user_script")):
		return fmt.Errorf("the server lacks a command that the scripts of locks need, for example TIME or GETEX of Redis 6.2; locker.NewScriptless needs no scripts (%w)", err)
	case unknown && strings.Contains(text, "eval"), strings.Contains(text, "command eval"), refusesText(err):
		return fmt.Errorf("the server refuses the scripts of locks; locker.NewScriptless needs no scripts, docs/hosted.md has more (%w)", err)
	case unknown && strings.Contains(text, "wait"):
		return fmt.Errorf("the server has no WAIT; make the Locker without WithReplicaAck (%w)", err)
	case unknown && strings.Contains(text, "info"):
		return fmt.Errorf("the server has no INFO, which locker.NewRedlock needs; give other servers, or one server to locker.New (%w)", err)
	}
	return err
}

// errorCode returns the first word of an error reply, which names the kind of error. Redis before
// 7.0, and its substitutes, put a text before the error of a command inside a script. This text is
// like "ERR Error running script (call to f_…): @user_script:12: ", and sometimes a '-' comes
// before the error.
func errorCode(reply string) string {
	if rest, ok := strings.CutPrefix(reply, "ERR Error "); ok {
		for part := range strings.SplitSeq(rest, ": ") {
			word, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(part), "-"), " ")
			if len(word) > 1 && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
				return word
			}
		}
	}
	word, _, _ := strings.Cut(reply, " ")
	return word
}
