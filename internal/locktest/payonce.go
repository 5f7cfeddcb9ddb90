package locktest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// PaysOnce checks that a service pays once when its client leaves before, during and after the
// write of the response, and sends the request again.
//
// The function serve starts a server, and returns its address. Its handler of POST /orders/:id runs
// under a lock with OnceFor. It calls pay with its context, and then replies 201 with the receipt.
// It passes the error of a write on, as its framework does. notices means that the context of the
// handler ends when its client leaves.
func PaysOnce(t *testing.T, notices bool, serve func(t *testing.T, pay func(ctx context.Context), receipt []byte) (addr string)) {
	t.Helper()
	receipt := bytes.Repeat([]byte("x"), 16<<20) // more than the buffers of a connection hold
	for _, leaves := range []string{"before", "during", "after"} {
		t.Run("the client leaves "+leaves+" the write", func(t *testing.T) {
			var payments atomic.Int32
			paid, gone := make(chan struct{}, 1), make(chan struct{})
			addr := serve(t, func(ctx context.Context) {
				if payments.Add(1) > 1 {
					return
				}
				paid <- struct{}{}
				if leaves != "before" {
					return
				}
				<-gone
				if notices {
					<-ctx.Done()
				}
			}, receipt)
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, "POST /orders/42 HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n")
			<-paid
			if leaves != "before" {
				first, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || first.StatusCode != http.StatusCreated {
					t.Fatal(first, err)
				}
				defer func() { _ = first.Body.Close() }()
				if leaves == "after" {
					_, err = io.Copy(io.Discard, first.Body)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			_ = conn.(*net.TCPConn).SetLinger(0) // the server learns of it at once
			_ = conn.Close()
			close(gone)

			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/orders/42", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			body, err := io.ReadAll(io.LimitReader(res.Body, 1000))
			if err != nil || res.StatusCode != http.StatusConflict || !strings.Contains(string(body), "already-done") || payments.Load() != 1 {
				t.Errorf("again: %d %.100q, %v; %d payments", res.StatusCode, body, err, payments.Load())
			}
		})
	}
}
