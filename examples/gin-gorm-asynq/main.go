// Command gin-gorm-asynq is a shop with Gin, GORM and asynq in one file. Twenty customers want five
// books, and each sold book becomes a task that packs it. Nothing has to be installed:
//
//	go run ./examples/gin-gorm-asynq
//
// transcript.txt is the output of the program, and docs/gin-gorm-asynq.md explains it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// Stock is the number of remaining items of an article.
type Stock struct {
	SKU  string `gorm:"primaryKey"`
	Left int
}

var errSoldOut = errors.New("sold out")

// shop has what the handlers need.
type shop struct {
	db     *sqllock.Handle[*gorm.DB]
	tasks  *asynqlock.Client
	packed sync.WaitGroup
	most   atomic.Int32 // the most books of one article that were packed at a time
	now    atomic.Int32
}

// buy takes one book from the stock and orders its packing. The route has the lock of the article,
// and Within claims the fence of this lock: a holder that was overtaken sells nothing.
func (s *shop) buy(c *gin.Context) {
	ctx, sku := c.Request.Context(), c.Param("sku") // ctx ends if the lock is lost
	err := s.db.Within(ctx, func(_ context.Context, tx *gorm.DB) error {
		var stock Stock
		if err := tx.First(&stock, "sku = ?", sku).Error; err != nil {
			return err
		}
		if stock.Left == 0 {
			return errSoldOut
		}
		stock.Left--
		return tx.Save(&stock).Error
	})
	if err == nil { // a crash here loses the task: examples/sql-outbox has it in the transaction
		s.packed.Add(1)
		payload, _ := json.Marshal(map[string]string{"sku": sku})
		_, err = s.tasks.EnqueueContext(ctx, asynq.NewTask("pack", payload))
	}
	switch {
	case errors.Is(err, errSoldOut):
		c.Status(http.StatusGone)
	case httplock.Reply(c.Writer, c.Request, err): // overtaken, or a lock was lost: 503, come again
	case err != nil:
		_ = c.AbortWithError(http.StatusInternalServerError, err)
	default:
		c.Status(http.StatusNoContent)
	}
}

// pack handles a task. The Guard lets one task of an article run at a time.
func (s *shop) pack(context.Context, *asynq.Task) error {
	defer s.packed.Done()
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	time.Sleep(10 * time.Millisecond)
	s.now.Add(-1)
	return nil
}

func run(ctx context.Context, out io.Writer) error {
	server, err := miniredis.Run() // for a demonstration: it expires no key by itself
	if err != nil {
		return err
	}
	defer server.Close()
	l, err := locker.Open("redis://" + server.Addr())
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(l.Drain(ctx), l.Close(context.Background())) }()

	pool, err := gorm.Open(sqlite.Open("file:shop?mode=memory&cache=shared&_pragma=busy_timeout(5000)"))
	if err != nil {
		return err
	}
	db, err := gormlock.New(l, pool)
	if err != nil {
		return err
	}
	err = errors.Join(db.Migrate(ctx), pool.AutoMigrate(&Stock{}), pool.Save(&Stock{SKU: "book", Left: 5}).Error)
	if err != nil {
		return err
	}

	queue := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer queue.Close()
	guard, err := asynqlock.New(l, asynqlock.WithWaking(queue), asynqlock.On("pack", asynqlock.Template("pack:{payload.sku}")))
	if err != nil {
		return err
	}
	s := &shop{db: db, tasks: guard.Client(asynq.NewClientFromRedisClient(queue))}
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.HandleFunc("pack", s.pack)
	workers := asynq.NewServerFromRedisClient(queue, guard.Configure(asynq.Config{Concurrency: 8, LogLevel: asynq.FatalLevel}))
	serving, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- guard.Run(serving, workers, mux) }()

	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/articles/:sku/buy", ginlock.MustNew(l, "sku:{param.sku|text}"), s.buy)
	statuses := make(chan int)
	for range 20 {
		go func() {
			w := httptest.NewRecorder()
			r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/articles/book/buy", http.NoBody))
			statuses <- w.Code
		}()
	}
	n := map[int]int{}
	for range 20 {
		n[<-statuses]++
	}
	s.packed.Wait()
	stop()
	fmt.Fprintf(out, "20 customers, 5 books: %d sold, %d refused\n", n[http.StatusNoContent], n[http.StatusGone])
	fmt.Fprintf(out, "%d books were packed, at most %d at a time\n", n[http.StatusNoContent], s.most.Load())
	return <-done
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}
