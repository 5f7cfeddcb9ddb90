// Command sql-outbox enqueues a job if and only if the job's transaction commits. The transaction
// writes the job into a table of the same database, the outbox. A relay moves the job from there
// to asynq. Two relays may run at once, a relay may be killed at any moment, and Redis may lose
// its data. Nevertheless, each order is paid only once, and the mail about the order is sent.
//
//	go run ./examples/sql-outbox
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
	"github.com/latchkit/latchkit/sqllock"
)

// shop pays orders, and sends mails about them.
type shop struct {
	pool  *sql.DB
	db    *sqllock.DB
	queue *asynq.Client
}

// pay pays an order once, even if pay is called several times, and requests a mail about the
// order. If the parameter fails is not nil, the transaction ends with this error, and pay
// writes neither a payment nor a mail.
func (s *shop) pay(ctx context.Context, order string, fails error) error {
	work := func(ctx context.Context, tx *sqllock.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO payments (order_id) VALUES (?)", order); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO outbox (id, task) VALUES (?, 'mail')", "mail:"+order); err != nil {
			return err
		}
		return fails
	}
	return s.db.Operation("pay:"+order).Do(ctx, locker.Rule{Key: "order:" + order}, work)
}

// relay moves the oldest jobs of the outbox to the queue of asynq, and returns their number.
// The id of a job is also the id of its task. A relay may be killed after it has enqueued a job
// and before it has deleted the row. Then the next relay enqueues the job again, and asynq
// refuses the second task.
func (s *shop) relay(ctx context.Context) (moved int, err error) {
	err = s.db.Do(ctx, locker.Rule{Key: "outbox"}, func(ctx context.Context, tx *sqllock.Tx) error {
		jobs, err := jobsOf(ctx, tx)
		if err != nil {
			return err
		}
		for id, task := range jobs {
			_, err := s.queue.EnqueueContext(ctx, asynq.NewTask(task, []byte(id)), asynq.TaskID(id))
			if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
				return err
			}
			if _, err := tx.ExecContext(ctx, "DELETE FROM outbox WHERE id = ?", id); err != nil {
				return err
			}
		}
		moved = len(jobs)
		return nil
	})
	return moved, err
}

// jobsOf returns the tasks of the oldest jobs, by the jobs' ids.
func jobsOf(ctx context.Context, tx *sqllock.Tx) (jobs map[string]string, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT id, task FROM outbox ORDER BY rowid LIMIT 100")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	jobs = make(map[string]string)
	for rows.Next() {
		var id, task string
		if err := rows.Scan(&id, &task); err != nil {
			return nil, err
		}
		jobs[id] = task
	}
	return jobs, rows.Err()
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	folder, err := os.MkdirTemp("", "sql-outbox")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(folder, "shop.db")+"?_pragma=busy_timeout(1000)")
	if err != nil {
		return err
	}
	defer pool.Close()
	for _, statement := range []string{
		"CREATE TABLE payments (order_id TEXT NOT NULL)",
		"CREATE TABLE outbox (id TEXT PRIMARY KEY, task TEXT NOT NULL)",
	} {
		if _, err := pool.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	observer, err := otellock.New()
	if err != nil {
		return err
	}
	l, err := locker.New(client, locker.WithObserver(observer)) // this option turns tracing on
	if err != nil {
		return err
	}
	defer func() { _ = l.Close(ctx) }()
	db, err := sqllock.New(l, pool)
	if err != nil {
		return err
	}
	if err := db.Migrate(ctx); err != nil {
		return err
	}
	s := &shop{pool, db, asynq.NewClientFromRedisClient(client)}
	return s.story(ctx, out, server.FlushAll)
}

// story pays orders, and prints the results.
func (s *shop) story(ctx context.Context, out io.Writer, forget func()) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"the payment of 4711 fails", func() error { return s.pay(ctx, "4711", errors.New("the bank refuses")) }},
		{"4711 is paid", func() error { return s.pay(ctx, "4711", nil) }},
		{"Redis loses its data, and 4711 is paid again", func() error { forget(); return s.pay(ctx, "4711", nil) }},
	} {
		said := "done"
		if err := step.do(); errors.Is(err, locker.ErrDone) {
			said = "was done before"
		} else if err != nil {
			said = err.Error()
		}
		if _, err := fmt.Fprintf(out, "%s: %s\n", step.what, said); err != nil {
			return err
		}
	}
	for range 2 {
		moved, err := s.relay(ctx)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "mails that the relay has enqueued: %d\n", moved); err != nil {
			return err
		}
	}
	payments := 0
	if err := s.pool.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&payments); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "payments: %d\n", payments)
	return err
}
