package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// quickSync makes replicas copy their master's data at once: the master does not wait for more
// replicas before it begins. These arguments also make the master send PINGs often. Nodes of a
// cluster do not list a replica before the replica has received data.
var quickSync = []string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}

// awaitSync returns when a replica has its master's data.
func (s *Server) awaitSync() error {
	return s.awaitNoError("follow its master", func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New(info)
		}
		return err
	})
}

// awaitNoError calls the function look again and again, until look returns no error. The parameter
// goal names the awaited state in the text of the error.
func (s *Server) awaitNoError(goal string, look func(context.Context, *redis.Client) error) error {
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Password: s.password, TLSConfig: s.tls, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := look(ctx, client)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pollPause):
		case <-ctx.Done():
			return fmt.Errorf("the server on %s did not %s within %v: %w\n%s", s.Addr(), goal, patience, err, s.LogTail())
		}
	}
}

func addrs(servers []*Server) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return all
}

func closeAll(servers []*Server) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
